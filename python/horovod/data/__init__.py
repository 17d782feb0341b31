"""Data loaders and readers, for any framework.

The readers need NumPy and pyarrow, which are imported with the first of them.
"""

from __future__ import annotations

from horovod.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader

# Type checkers recognize this name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from horovod.data.arrow import ArrowReader
    from horovod.data.batch_reader import BatchReader
    from horovod.data.columns import Column
    from horovod.data.parquet import ParquetReader
    from horovod.data.ray import RayReader

__all__ = [
    "ArrowReader",
    "AsyncDataLoaderMixin",
    "BaseDataLoader",
    "BatchReader",
    "Column",
    "ParquetReader",
    "RayReader",
]

_MODULES = {
    "ArrowReader": "arrow",
    "BatchReader": "batch_reader",
    "Column": "columns",
    "ParquetReader": "parquet",
    "RayReader": "ray",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"horovod.data.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"horovod.data.{name} needs NumPy and pyarrow, and {error.name} is not installed here; "
            f"install it with `pip install {error.name}`",
            name=error.name,
        ) from error
