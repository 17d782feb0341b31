"""Vectors of Spark ML, which Spark stores as structs, as rows of an array.

A dense vector is its values. A sparse one is its size, and the indices of its values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FIELDS = {"type", "size", "indices", "values"}
_DENSE = 1


def is_vector(kind: pa.DataType) -> bool:
    """Whether Spark stores vectors in this type."""
    if not pa.types.is_struct(kind):
        return False
    return {kind.field(at).name for at in range(kind.num_fields)} == _FIELDS


def vectors(name: str, rows: pa.StructArray) -> NDArray[Any]:
    """The vectors of a column, one in each row; they share the values' memory if all are dense."""
    names = [rows.type.field(at).name for at in range(rows.type.num_fields)]
    fields = dict(zip(names, rows.flatten()))
    is_dense = fields["type"].to_numpy(zero_copy_only=False) == _DENSE
    stored = fields["values"].value_lengths().to_numpy(zero_copy_only=False)
    sizes = fields["size"].fill_null(0).to_numpy(zero_copy_only=False)
    lengths = np.unique(np.where(is_dense, stored, sizes))
    if len(lengths) != 1:
        raise ValueError(
            f"column `{name}` has vectors of {lengths.min()} to {lengths.max()} elements; "
            "make them equally long, as an array needs"
        )
    values = fields["values"].flatten().to_numpy(zero_copy_only=False)
    if is_dense.all():
        return values.reshape(len(rows), lengths[0])  # type: ignore[no-any-return]
    array = np.zeros((len(rows), lengths[0]))
    of_dense = np.repeat(is_dense, stored)
    array[is_dense] = values[of_dense].reshape(-1, lengths[0])
    row = np.repeat(np.arange(len(rows)), stored)[~of_dense]
    array[row, fields["indices"].flatten().to_numpy(zero_copy_only=False)] = values[~of_dense]
    return array
