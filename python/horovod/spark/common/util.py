"""Functions that programs import from `horovod.spark.common.util`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.spark.common import prepared
from horovod.spark.common.filesystem import Store

__all__ = [
    "clear_training_cache",
    "prepare_data",
]


def prepare_data(
    num_processes: int,
    store: Store,
    df: Any,
    label_columns: Sequence[str],
    feature_columns: Sequence[str],
    validation: float | str | None = None,
    sample_weight_col: str | None = None,
    compress_sparse: bool = False,
    partitions_per_process: int = 10,
    verbose: int = 0,
) -> prepared.PreparedData:
    """Write a DataFrame into a store, as `fit` does before it trains.

    Args:
        num_processes: Number of ranks that will read it.
        store: The store.
        df: The DataFrame.
        label_columns: Columns that a model predicts.
        feature_columns: Columns that it reads.
        validation: Share of the rows, or name of a column, that is for validation (default: None).
        sample_weight_col: Column with the weight of each row (default: None).
        compress_sparse: Accepted for compatibility with Horovod (default: False).
        partitions_per_process: Files for each rank (default: 10).
        verbose: Accepted for compatibility with Horovod (default: 0).

    Returns:
        What was written: `dataset_idx`, `train_path`, `val_path`, `train_rows`, `val_rows` and
        `columns`.

    Raises:
        ValueError: If columns are missing or cannot be used, or a part has no rows.
    """
    if num_processes <= 0 or partitions_per_process <= 0:
        raise ValueError("num_processes and partitions_per_process must be positive")
    names = [*feature_columns, *label_columns, *([sample_weight_col] if sample_weight_col else [])]
    how = prepared.Preparation(
        tuple(dict.fromkeys(names)), validation, num_processes * partitions_per_process, None
    )
    return prepared.prepare(df, how, store)


def clear_training_cache() -> None:
    """Forget what was written: the next fit of any DataFrame writes it again."""
    prepared.forget()
