"""Batches in the shapes that a Keras model takes and makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horovod.spark.common.job import Batch


def arguments(batch: Batch, inputs: list[Any], outputs: list[Any], floats: str) -> tuple[Any, ...]:
    """What `fit` takes: features, labels and, if there are any, weights of the rows."""
    features = fitting(batch.features, inputs, floats)
    labels = fitting(batch.labels, outputs, floats)
    parts: tuple[Any, ...] = (one_or_all(features), one_or_all(labels))
    if batch.weights is None:
        return parts
    return (*parts, one_or_all([batch.weights.astype(floats)] * len(labels)))


def fitting(arrays: list[NDArray[Any]], shapes: list[Any], floats: str) -> list[NDArray[Any]]:
    """Rows in the shapes of inputs or outputs, where they have as many numbers."""
    if len(shapes) != len(arrays):
        shapes = [None] * len(arrays)
    return [_fitting(array, shape, floats) for array, shape in zip(arrays, shapes)]


def shapes_of(model: Any, part: str) -> list[Any]:
    """The shapes of a row that a model says it takes or makes, where it knows them."""
    tensors = getattr(model, part, None) or []
    shapes = [tuple(each.shape)[1:] for each in tensors]
    return [None if None in shape else tuple(map(int, shape)) for shape in shapes]


def one_or_all(arrays: list[Any]) -> Any:
    """A single one alone, several as a tuple."""
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


def _fitting(array: NDArray[Any], shape: tuple[int, ...] | None, floats: str) -> NDArray[Any]:
    if shape is not None and array[:1].size == np.prod(shape, dtype=int):
        array = array.reshape(len(array), *shape)
    return array.astype(floats, copy=False) if array.dtype.kind == "f" else array
