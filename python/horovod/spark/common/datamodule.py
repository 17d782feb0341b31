"""Names of Horovod's data modules: how estimators read Parquet is not a choice any more."""

from __future__ import annotations

from typing import Any

__all__ = [
    "PetastormDataModule",
]

_INSTEAD = (
    "it is not part of Ronde: estimators read Parquet with horovod.data.ParquetReader; leave "
    "data_module out, and use transformation_fn to change batches"
)


class PetastormDataModule:
    """Stands for the way in which every estimator reads Parquet, with `horovod.data`."""


def check(module: Any) -> None:
    """Refuses a data module that reads in another way."""
    if module not in (None, PetastormDataModule):
        raise ValueError(f"data_module is {module!r}; {_INSTEAD}")


def __getattr__(name: str) -> Any:
    if name in ("DataModule", "NVTabularDataModule"):
        raise ImportError(f"{name}: {_INSTEAD}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
