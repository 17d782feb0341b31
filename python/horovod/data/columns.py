"""Columns of Arrow as arrays of NumPy, which share their memory where the formats agree.

They do for numbers and times without nulls, and for lists and tensors of them. Booleans, strings,
bytes and anything that is converted are copied. Nothing guesses what a null stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import pyarrow as pa

from horovod.data.spark_vectors import is_vector, vectors

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

Batch = dict[str, "NDArray[Any]"]
Columns = Union[Sequence[str], Mapping[str, Union["Column", None]], None]


@dataclass(frozen=True)
class Column:
    """How a column becomes an array.

    Args:
        shape: Shape of one row, for lists and tensors stored as lists (default: None, as stored:
            the rows of a list column must then be equally long).
        dtype: Element type of the array (default: None, as stored).
        fill_null: Value to use in place of nulls (default: None, a null is an error).
    """

    shape: tuple[int, ...] | None = None
    dtype: DTypeLike | None = None
    fill_null: Any = None


class Conversion:
    """Turns record batches into batches of arrays."""

    def __init__(self, columns: Columns) -> None:
        self._columns = dict(columns) if isinstance(columns, Mapping) else {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def __call__(self, batch: pa.RecordBatch) -> Batch:
        """The columns of a record batch as arrays."""
        names = batch.schema.names
        return {name: self._array(name, batch.column(name)) for name in names}

    def _array(self, name: str, values: pa.Array) -> NDArray[Any]:
        column = self._columns.get(name) or Column()
        array = _dense(name, values, column)
        if column.shape is not None:
            array = _reshaped(name, array, tuple(column.shape))
        shape = self._shapes.setdefault(name, array.shape[1:])
        if shape != array.shape[1:]:
            raise ValueError(
                f"column `{name}` has rows of shape {shape} and of shape {array.shape[1:]}; "
                "make them equally long, as an array needs"
            )
        return array if column.dtype is None else array.astype(column.dtype, copy=False)


def names_of(columns: Columns, known: Iterable[str]) -> list[str]:
    """The names of the columns to read; raises if there is one that the data does not have."""
    known = list(known)
    if columns is None:
        return known
    if isinstance(columns, str):
        raise TypeError(f"columns must be a list of names or a dict; use [{columns!r}]")
    missing = [f"`{name}`" for name in columns if name not in known]
    if missing:
        has = ", ".join(f"`{name}`" for name in known)
        raise ValueError(f"there is no column {', '.join(missing)}; the data has {has}")
    return list(columns)


def _dense(name: str, values: pa.Array, column: Column) -> NDArray[Any]:
    """An array with one row per value, and more dimensions for lists and tensors."""
    if isinstance(values.type, pa.BaseExtensionType):
        return _extension(name, values, column)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if _is_list(values.type):
        return _lists(name, values, column)
    if is_vector(values.type):
        _refuse_nulls(name, values, "vectors")
        return vectors(name, values)
    if pa.types.is_nested(values.type):
        raise TypeError(
            f"column `{name}` has values of type {values.type}, which are no arrays; leave it out"
        )
    values = _filled(name, values, column)
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.float64())
    return values.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _extension(name: str, values: pa.Array, column: Column) -> NDArray[Any]:
    shape = getattr(values.type, "shape", None)
    if shape is None:
        return _dense(name, values.storage, column)
    permutation = getattr(values.type, "permutation", None)
    if permutation is not None and list(permutation) != sorted(permutation):
        return values.to_numpy_ndarray()  # type: ignore[no-any-return]
    return _reshaped(name, _dense(name, values.storage, column), tuple(shape))


def _lists(name: str, values: pa.Array, column: Column) -> NDArray[Any]:
    _refuse_nulls(name, values, "lists")
    # Only the elements of these rows, also if the array is a slice of a larger one.
    elements = _dense(name, values.flatten(), column)
    rows = len(values)
    lengths = {len(elements) // rows} if rows else {0}
    if not pa.types.is_fixed_size_list(values.type):
        lengths = set(np.unique(np.diff(values.offsets.to_numpy())).tolist())
    if len(lengths) > 1:
        raise ValueError(
            f"column `{name}` has lists of {min(lengths)} to {max(lengths)} elements; "
            "make them equally long, as an array needs"
        )
    return elements.reshape(rows, *lengths, *elements.shape[1:])


def _refuse_nulls(name: str, values: pa.Array, kind: str) -> None:
    if values.null_count:
        raise ValueError(
            f"column `{name}` has {values.null_count} nulls in place of {kind}; "
            "remove these rows with `filters`, or before the data is written"
        )


def _filled(name: str, values: pa.Array, column: Column) -> pa.Array:
    if not values.null_count:
        return values
    if column.fill_null is None:
        raise ValueError(
            f"column `{name}` has {values.null_count} nulls among {len(values)} values; give "
            f'`columns={{"{name}": Column(fill_null=...)}}`, or remove these rows with `filters`'
        )
    return values.fill_null(pa.scalar(column.fill_null, values.type))


def _reshaped(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    elements = prod(array.shape[1:])
    known = prod(size for size in shape if size >= 0)
    fits = elements == known if -1 not in shape else known and elements % known == 0
    if not fits:
        raise ValueError(f"column `{name}` has {elements} elements in a row; {shape} has not")
    return array.reshape(len(array), *(s if s >= 0 else elements // known for s in shape))


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
