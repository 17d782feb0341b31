"""Names of Horovod's data modules."""

from __future__ import annotations

from typing import Any

from horovod.spark.common import datamodule
from horovod.spark.common.datamodule import PetastormDataModule

__all__ = ["PetastormDataModule"]


def __getattr__(name: str) -> Any:
    return getattr(datamodule, name)
