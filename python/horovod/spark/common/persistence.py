"""Writing estimators and models, and reading them back, as other parts of Spark ML are.

Below a path there are `metadata`, the text that Spark's own parts have, with the parameters that
JSON can hold; and `values`, a Parquet file whose rows hold the others. All of these are in one
pickle, so that an optimizer still belongs to its model after loading: as with any pickle, load only
what you trust.
"""

from __future__ import annotations

import json
import time
from typing import Any

import cloudpickle  # type: ignore[import-untyped, unused-ignore]
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter

from horovod.spark.common.options import Configured

__all__ = [
    "HorovodParamsReader",
    "HorovodParamsWriter",
    "ReadableAndWritable",
]

# Spark refuses values of 2 GB.
_ROW_BYTES = 64 << 20


class HorovodParamsWriter(MLWriter):
    """Writes an estimator or a model: what `write()` returns.

    Args:
        instance: The estimator or model.
    """

    def __init__(self, instance: Configured) -> None:
        super().__init__()
        self.instance = instance

    def save(self, path: str) -> None:
        """Write it below a path of a file system that Spark knows.

        Args:
            path: A folder, which must not exist unless `overwrite()` was called.
        """
        self.saveImpl(path)

    def saveImpl(self, path: str) -> None:
        """Write it.

        Args:
            path: The folder.
        """
        plain, others = _divided(self.instance)
        session: Any = self.sparkSession
        mode = "overwrite" if self.shouldOverwrite else "error"
        kind = type(self.instance)
        metadata = {
            "class": f"{kind.__module__}.{kind.__qualname__}",
            "timestamp": round(time.time() * 1000),
            "sparkVersion": session.version,
            "uid": self.instance.uid,
            "paramMap": plain,
            "defaultParamMap": {},
        }
        pickle = cloudpickle.dumps(others)
        rows = [
            (number, bytearray(pickle[start : start + _ROW_BYTES]))
            for number, start in enumerate(range(0, len(pickle), _ROW_BYTES))
        ]
        values = session.createDataFrame(rows, "number bigint, value binary").coalesce(1)
        values.write.mode(mode).parquet(f"{path}/values")
        text = session.createDataFrame([(json.dumps(metadata),)], "value string").coalesce(1)
        text.write.mode(mode).text(f"{path}/metadata")


class HorovodParamsReader(MLReader[Any]):
    """Reads an estimator or a model: what `read()` returns.

    Args:
        cls: Its class.
    """

    def __init__(self, cls: type[Any]) -> None:
        super().__init__()
        self.cls = cls

    def load(self, path: str) -> Any:
        """Read what was written below a path.

        Args:
            path: The folder.

        Returns:
            The estimator or model.

        Raises:
            ValueError: If it is of another class.
        """
        session: Any = self.sparkSession
        metadata = json.loads(session.read.text(f"{path}/metadata").first()[0])
        name = f"{self.cls.__module__}.{self.cls.__qualname__}"
        if metadata["class"] != name:
            raise ValueError(
                f"`{path}` holds a {metadata['class']}, not a {name}; load it with its own class"
            )
        rows = session.read.parquet(f"{path}/values").orderBy("number").collect()
        others = cloudpickle.loads(b"".join(row["value"] for row in rows))
        instance = self.cls()
        instance._resetUid(metadata["uid"])
        for param, value in {**metadata["paramMap"], **others}.items():
            instance._set(**{param: instance._unpacked(param, value)})
        return instance


class ReadableAndWritable(Configured, MLWritable, MLReadable[Any]):
    """Can be written with `save` and read with `load`."""

    def write(self) -> HorovodParamsWriter:
        """Return what writes this object.

        Returns:
            A writer, with `overwrite()` and `save(path)`.
        """
        return HorovodParamsWriter(self)

    @classmethod
    def read(cls) -> HorovodParamsReader:
        """Return what reads objects of this class.

        Returns:
            A reader, with `load(path)`.
        """
        return HorovodParamsReader(cls)

    def _packed(self, name: str, value: Any) -> Any:
        """What is pickled of a value; frameworks whose objects do not pickle override both."""
        return value

    def _unpacked(self, name: str, value: Any) -> Any:
        return value


def _divided(instance: Configured) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values that were set: those that JSON gives back as they are, and the others."""
    plain, others = {}, {}
    for param, value in instance._paramMap.items():  # type: ignore[attr-defined, unused-ignore]
        if _is_plain(value):
            plain[param.name] = value
        else:
            assert isinstance(instance, ReadableAndWritable)
            others[param.name] = instance._packed(param.name, value)
    return plain, others


def _is_plain(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value) and _json_types(value)
    except (TypeError, ValueError):
        return False


def _json_types(value: Any) -> bool:
    """Whether JSON keeps the types: it makes lists of tuples, and strings of keys."""
    if isinstance(value, list):
        return all(_json_types(each) for each in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _json_types(each) for key, each in value.items())
    return value is None or type(value) in (bool, int, float, str)
