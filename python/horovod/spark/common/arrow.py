"""Arrow batches with predictions added, on the executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from horovod.data.columns import Conversion

if TYPE_CHECKING:
    from horovod.spark.common.inference import Output, Predict

# Rows that a model gets at once.
_ROWS = 1024
_TYPES = {"bigint": pa.int64(), "boolean": pa.bool_(), "double": pa.float64()}


def with_predictions(
    batch: pa.RecordBatch, features: int, predict: Predict, outputs: Sequence[Output]
) -> Iterator[pa.RecordBatch]:
    """The batch with predictions in place of its last columns, which are the features."""
    kept = batch.num_columns - features
    for start in range(0, batch.num_rows, _ROWS):
        part = batch.slice(start, _ROWS)
        names = [str(number) for number in range(features)]
        inputs = pa.RecordBatch.from_arrays(part.columns[kept:], names)
        arrays = predict(list(Conversion(None)(inputs).values()))
        added = [_column(array, part.num_rows, output) for array, output in zip(arrays, outputs)]
        yield pa.RecordBatch.from_arrays(
            [*part.columns[:kept], *added],
            [*part.schema.names[:kept], *(output.name for output in outputs)],
        )


def _column(array: Any, rows: int, output: Output) -> pa.Array:
    if len(array) != rows:
        raise ValueError(
            f"the model returned {len(array)} rows for {rows}; its outputs must have one for each"
        )
    inner = _TYPES[output.type.replace("array<", "").rstrip(">")]
    numbers = np.ascontiguousarray(array).reshape(rows, -1)
    flat = pa.array(numbers.reshape(-1)).cast(inner)
    if not output.type.startswith("array<"):
        return flat
    size = numbers.shape[1]
    offsets = pa.array(np.arange(0, rows * size + 1, size, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, flat)
