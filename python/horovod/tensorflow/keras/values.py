"""Collectives on plain values, as Keras programs use them outside a graph.

A value becomes a constant; the result is a tensor, or in a TensorFlow 1 graph its value in Keras's
session.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import horovod.tensorflow as _hvd
from horovod.common.reductions import Average
from horovod.tensorflow.compression import Compression

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
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduce a value over all ranks and return the result.

    Args:
        value: A number, array or tensor; of the same shape on every rank.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        average: Deprecated, use `op`: True means `hvd.Average`, False means `hvd.Sum` (default:
            None).
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
        The result: a tensor, or its value in a TensorFlow 1 session.

    Raises:
        ValueError: If `op` and `average` are both given, or `compression` cannot compress.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
    """
    return _run(
        _hvd.allreduce(
            tf.constant(value),
            average=average,
            compression=compression,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            name=name,
        )
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenate the values of all ranks along the first dimension.

    Args:
        value: An array or tensor with at least one dimension. The first dimension may differ
            between ranks, the others must be the same.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).

    Returns:
        The result: a tensor, or its value in a TensorFlow 1 session.

    Raises:
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
    """
    return _run(_hvd.allgather(tf.constant(value), name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Send a value from one rank to all others and return it.

    Args:
        value: A number, array or tensor; of the same shape on every rank.
        root_rank: Rank that sends.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).

    Returns:
        The result: a tensor, or its value in a TensorFlow 1 session.

    Raises:
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
    """
    return _run(_hvd.broadcast(tf.constant(value), root_rank, name))


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
        The result: a tensor, or its value in a TensorFlow 1 session.

    Raises:
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        UnsupportedReductionError: If `op` is neither `hvd.Average` nor `hvd.Sum`; it is a
            `NotImplementedError` and a `ValueError`.
    """
    return _run(_hvd.reducescatter(tf.constant(value), op=op, name=name))


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
    return _run(_hvd.broadcast_global_variables(root_rank))


def _run(result: Any) -> Any:
    if tf.compat.v1.executing_eagerly_outside_functions():
        return result
    session = tf.compat.v1.get_default_session()
    if session is None:
        # Keras 3 has no sessions.
        own: Any = getattr(tf.compat.v1.keras.backend, "get_session", None)
        if own is None:
            raise RuntimeError(
                "there is no session here, and Keras 3 makes none; make one the default, use Keras "
                "2 (TF_USE_LEGACY_KERAS=1), or do not disable eager execution"
            )
        session = own()
    return session.run(result)
