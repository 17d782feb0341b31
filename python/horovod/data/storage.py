"""Opens Parquet datasets at local paths, at URLs that Arrow knows, and at those of fsspec."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

Paths = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]

# Arrow's own, which read without the interpreter lock, and Arrow's names for them: Hadoop calls
# S3 something else. All others are fsspec's.
_ARROW_SCHEMES = {each: each for each in ("file", "gcs", "gs", "hdfs", "s3", "viewfs")}
_ARROW_SCHEMES["s3a"] = "s3"


def open_dataset(
    path: Paths, filesystem: Any = None, options: Mapping[str, Any] | None = None
) -> Dataset:
    """The dataset at a path or URL, or of several files; folders like `day=1` become columns."""
    several = not isinstance(path, (str, os.PathLike))
    # Spark writes `path/part-0.parquet`, with `_SUCCESS` and hidden checksums beside it.
    given: Any = path if several else [path]
    paths = [os.fspath(each) for each in given]
    if not paths:
        raise ValueError("no path is given; name at least one Parquet file")
    if filesystem is None:
        resolved = [_resolved(each, options) for each in paths]
        filesystem, paths = resolved[0][0], [each[1] for each in resolved]
    dataset = pyarrow.dataset.dataset(
        paths if several else paths[0],
        format="parquet",
        filesystem=filesystem,
        partitioning="hive",
    )
    if not dataset.files:
        raise FileNotFoundError(f"there is no Parquet file in {path}")
    return dataset


def _resolved(path: str, options: Mapping[str, Any] | None) -> tuple[Any, str]:
    """The filesystem of a path, and what the path is called there."""
    scheme, separator, rest = path.partition("://")
    if not separator and not options:
        return pyarrow.fs.LocalFileSystem(), os.path.abspath(path)
    if scheme in _ARROW_SCHEMES and not options:
        try:
            filesystem, inside = pyarrow.fs.FileSystem.from_uri(
                f"{_ARROW_SCHEMES[scheme]}://{rest}"
            )
        except pa.ArrowNotImplementedError:
            pass  # a build without it
        else:
            return filesystem, inside
    return _of_fsspec(path, options or {})


def _of_fsspec(path: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ImportError(
            f"reading {path} needs fsspec, which is not installed here; "
            "install it with `pip install fsspec`"
        ) from error
    filesystem, inside = url_to_fs(path, **options)
    return filesystem, inside
