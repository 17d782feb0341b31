"""Collectives on plain values, as Keras programs use them.

On TensorFlow they return tensors, like `horovod.tensorflow.keras`; on torch and JAX, NumPy arrays.
"""

from __future__ import annotations

import importlib
from typing import Any

import keras
import numpy as np

from horovod import raw
from horovod._keras.backends import backend_of
from horovod._keras.variables import seen
from horovod.common.compression import checked
from horovod.common.reductions import Average, handle_average_backwards_compatibility
from horovod.keras.compression import Compression

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "reducescatter",
]


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduce a value over all ranks and return the result.

    Give `average=None` along with `op`, as in Horovod.

    Args:
        value: A number, array or tensor; of the same shape on every rank.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        average: Deprecated, use `op`: True means `hvd.Average`, False means `hvd.Sum` (default:
            True).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        op: Reduction: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max`, `hvd.Product` or `hvd.Adasum`
            (default: `hvd.Average`).
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).

    Returns:
        The result: a tensor with Keras on TensorFlow, a NumPy array on torch and JAX.

    Raises:
        ValueError: If `op` and `average` are both given, or `compression` cannot compress.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
    """
    if average is True and op is None:
        op, average = Average, None
    op = handle_average_backwards_compatibility(op, average)
    factors = (prescale_factor, postscale_factor)
    tensors = _of_tensorflow()
    if tensors is not None:
        return tensors.allreduce(value, name, None, *factors, op, compression)
    if checked(compression) is Compression.none:
        return raw.allreduce(_array(value), name, op, *factors)
    hvd: Any = importlib.import_module(f"horovod.{backend_of(keras)}")
    small, context = compression.compress(keras.ops.convert_to_tensor(_array(value)))
    reduced = hvd.allreduce(
        small, op=op, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor
    )
    return keras.ops.convert_to_numpy(compression.decompress(reduced, context))


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenate the values of all ranks along the first dimension.

    Args:
        value: An array or tensor with at least one dimension. The first dimension may differ
            between ranks, the others must be the same.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).

    Returns:
        The result: a tensor with Keras on TensorFlow, a NumPy array on torch and JAX.

    Raises:
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
    """
    tensors = _of_tensorflow()
    if tensors is not None:
        return tensors.allgather(value, name)
    return raw.allgather(_array(value), name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Send a value from one rank to all others and return it.

    Args:
        value: A number, array or tensor; of the same shape on every rank.
        root_rank: Rank that sends.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).

    Returns:
        The result: a tensor with Keras on TensorFlow, a NumPy array on torch and JAX.

    Raises:
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
    """
    tensors = _of_tensorflow()
    if tensors is not None:
        return tensors.broadcast(value, root_rank, name)
    return raw.broadcast(_array(value), root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Reduce a value over all ranks and return this rank's share of the rows.

    Rows are split evenly; if they do not divide by the number of ranks, the first ranks get one
    extra row.

    Args:
        value: An array or tensor with at least one dimension, of the same shape on every rank.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        op: Reduction: `hvd.Average` or `hvd.Sum` (default: `hvd.Average`).

    Returns:
        The result: a tensor with Keras on TensorFlow, a NumPy array on torch and JAX.

    Raises:
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        UnsupportedReductionError: If `op` is neither `hvd.Average` nor `hvd.Sum`; it is a
            `NotImplementedError` and a `ValueError`.
    """
    tensors = _of_tensorflow()
    if tensors is not None:
        return tensors.reducescatter(value, name, op)
    return raw.reducescatter(_array(value), name, op)


def broadcast_global_variables(root_rank: int) -> Any:
    """Overwrite all variables of TensorFlow's default graph with those of one rank.

    For TensorFlow 1 graphs; otherwise use `callbacks.BroadcastGlobalVariablesCallback`.

    Args:
        root_rank: Rank that sends.

    Returns:
        What the session returns.

    Raises:
        RuntimeError: If there is no such graph.
    """
    tensors = _of_tensorflow()
    if tensors is None:
        raise RuntimeError(
            "hvd.broadcast_global_variables() needs a TensorFlow 1 graph; use "
            "hvd.callbacks.BroadcastGlobalVariablesCallback"
        )
    return tensors.broadcast_global_variables(root_rank)


def _array(value: Any) -> Any:
    """A number, array or tensor as an array in host memory."""
    return np.asarray(seen(keras, value))


def _of_tensorflow() -> Any:
    """The same functions on tensors, if Keras runs on TensorFlow."""
    if backend_of(keras) != "tensorflow":
        return None
    return importlib.import_module("horovod.tensorflow.keras.values")
