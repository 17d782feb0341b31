"""Reductions of dense and sparse tensors, single or grouped, with compression.

A sparse tensor (`tf.IndexedSlices`) is reduced by gathering the slices of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod import _native
from horovod.common.calls import by_type
from horovod.common.compression import checked
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.reductions import (
    Adasum,
    Average,
    Sum,
    handle_average_backwards_compatibility,
)
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.util import as_tensor, divided, set_id

__all__ = [
    "allreduce",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce a tensor over all ranks and return the result.

    Gradients flow through it; the backward pass is also a collective, so all ranks must run it. The
    result for a `tf.IndexedSlices` is again one, with the slices of all ranks.

    Args:
        tensor: Tensor, variable, `tf.IndexedSlices`, or anything that `tf.convert_to_tensor` takes;
            of the same shape on every rank.
        average: Deprecated, use `op`: True means `hvd.Average`, False means `hvd.Sum` (default:
            None).
        device_dense: Device for dense tensors, such as `/cpu:0` (default: the current device).
        device_sparse: Device for `tf.IndexedSlices` (default: the current device).
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).
        op: Reduction: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max`, `hvd.Product` or `hvd.Adasum`
            (default: `hvd.Average`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        name: Name by which ranks match this operation; pass the same on every rank (default: in a
            graph, derived from the tensor's name; eagerly, ranks match operations in the order of
            the calls).
        process_set: Ranks that take part (default: all ranks).
        ignore_name_scope: Whether ranks match the operation by the last part of its name only
            (default: False).

    Returns:
        A tensor with the shape and element type of `tensor`, the same on every rank.

    Raises:
        TypeError: If an input cannot be converted to a dense tensor.
        NotImplementedError: If a `tf.IndexedSlices` is used with an `op` other than `hvd.Average`
            and `hvd.Sum`, or with a scale factor.
        tf.errors.InvalidArgumentError: If the call is invalid: the element type is not supported,
            this rank is not in `process_set`, or an operation of that name is already in flight.
        tf.errors.FailedPreconditionError: If Horovod is not initialized, or the ranks disagree
            about shape, element type or operation.
        tf.errors.UnknownError: If a rank was lost; `hvd.HorovodInternalError.last()` says which and
            why.

    Example:
        ```python
        import horovod.tensorflow as hvd
        import tensorflow as tf

        hvd.init()
        mean = hvd.allreduce(tf.ones(3) * hvd.rank())
        total = hvd.allreduce(tf.ones(3), op=hvd.Sum)
        ```
    """
    op = handle_average_backwards_compatibility(op, average)
    checked(compression)
    if isinstance(tensor, tf.IndexedSlices):
        _check_sparse(op, prescale_factor, postscale_factor)
        with tf.device(device_sparse):
            return _reduce_sparse(tensor, op, name, process_set, ignore_name_scope)
    with tf.device(device_dense):
        small, context = compression.compress(as_tensor(tensor))
        reduced = mpi_ops._allreduce(
            small,
            name,
            op,
            prescale_factor,
            postscale_factor,
            ignore_name_scope,
            process_set,
        )
        return compression.decompress(reduced, context)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduce several tensors over all ranks as one operation.

    Gradients flow through it; the backward pass is also a collective, so all ranks must run it.

    Args:
        tensors: Tensors, `tf.IndexedSlices`, or anything that `tf.convert_to_tensor` takes; the
            same number and the same shapes on every rank. Element types may be mixed.
        average: Deprecated, use `op`: True means `hvd.Average`, False means `hvd.Sum` (default:
            None).
        device_dense: Device for dense tensors, such as `/cpu:0` (default: the current device).
        device_sparse: Device for `tf.IndexedSlices` (default: the current device).
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).
        op: Reduction: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max`, `hvd.Product` or `hvd.Adasum`
            (default: `hvd.Average`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).
        ignore_name_scope: Whether ranks match the operation by the last part of its name only
            (default: False).
        name: Name by which ranks match this operation; pass the same on every rank (default: in a
            graph, derived from the tensor's name; eagerly, ranks match operations in the order of
            the calls).

    Returns:
        Tensors, in the order of `tensors`.

    Raises:
        TypeError: If an input cannot be converted to a dense tensor.
        NotImplementedError: If a `tf.IndexedSlices` is used with an `op` other than `hvd.Average`
            and `hvd.Sum`, or with a scale factor.
        tf.errors.InvalidArgumentError: If the call is invalid: the element type is not supported,
            this rank is not in `process_set`, or an operation of that name is already in flight.
        tf.errors.FailedPreconditionError: If Horovod is not initialized, or the ranks disagree
            about shape, element type or operation.
        tf.errors.UnknownError: If a rank was lost; `hvd.HorovodInternalError.last()` says which and
            why.
    """
    op = handle_average_backwards_compatibility(op, average)
    checked(compression)
    results = list(tensors)
    dense = []
    for position, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            _check_sparse(op, prescale_factor, postscale_factor)
            own = None if name is None else f"{name}_{position + 1}of{len(results)}"
            with tf.device(device_sparse):
                results[position] = _reduce_sparse(tensor, op, own, process_set, ignore_name_scope)
        else:
            dense.append((position, *compression.compress(as_tensor(tensor))))
    with tf.device(device_dense):
        for part, group in enumerate(_by_type(dense)):
            reduced = mpi_ops._grouped_allreduce(
                [small for _, small, _ in group],
                name if name is None or part == 0 else f"{name}_{part}",
                op,
                prescale_factor,
                postscale_factor,
                ignore_name_scope,
                process_set,
            )
            for (position, _, context), tensor in zip(group, reduced):
                results[position] = compression.decompress(tensor, context)
    return results


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce a tensor over all ranks and return this rank's share of the rows.

    Rows are split evenly; if they do not divide by the number of ranks, the first ranks get one
    extra row. Gradients flow through it; the backward pass is also a collective, so all ranks must
    run it.

    Args:
        tensor: Tensor with at least one dimension, of the same shape on every rank.
        device_dense: Device for dense tensors, such as `/cpu:0` (default: the current device).
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).
        op: Reduction: `hvd.Average` or `hvd.Sum` (default: `hvd.Average`).
        name: Name by which ranks match this operation; pass the same on every rank (default: in a
            graph, derived from the tensor's name; eagerly, ranks match operations in the order of
            the calls).
        process_set: Ranks that take part (default: all ranks).
        ignore_name_scope: Whether ranks match the operation by the last part of its name only
            (default: False).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).

    Returns:
        A tensor with this rank's rows.

    Raises:
        TypeError: If an input cannot be converted to a dense tensor.
        UnsupportedReductionError: If `op` is neither `hvd.Average` nor `hvd.Sum`; it is a
            `NotImplementedError` and a `ValueError`.
        tf.errors.InvalidArgumentError: If the call is invalid: the element type is not supported,
            this rank is not in `process_set`, or an operation of that name is already in flight.
        tf.errors.FailedPreconditionError: If Horovod is not initialized, or the ranks disagree
            about shape, element type or operation.
        tf.errors.UnknownError: If a rank was lost; `hvd.HorovodInternalError.last()` says which and
            why.
    """
    checked(compression)
    with tf.device(device_dense):
        small, context = compression.compress(as_tensor(tensor))
        part = mpi_ops._reducescatter(
            small, name, op, ignore_name_scope, process_set, prescale_factor, postscale_factor
        )
        return compression.decompress(part, context)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduce several tensors as one operation and return this rank's share of the rows.

    Rows are split evenly; if they do not divide by the number of ranks, the first ranks get one
    extra row. Gradients flow through it; the backward pass is also a collective, so all ranks must
    run it.

    Args:
        tensors: Tensors with at least one dimension; the same number and the same shapes on every
            rank. Element types may be mixed.
        device_dense: Device for dense tensors, such as `/cpu:0` (default: the current device).
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).
        op: Reduction: `hvd.Average` or `hvd.Sum` (default: `hvd.Average`).
        process_set: Ranks that take part (default: all ranks).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).

    Returns:
        Tensors with this rank's rows, in the order of `tensors`.

    Raises:
        TypeError: If an input cannot be converted to a dense tensor.
        UnsupportedReductionError: If `op` is neither `hvd.Average` nor `hvd.Sum`; it is a
            `NotImplementedError` and a `ValueError`.
        tf.errors.InvalidArgumentError: If the call is invalid: the element type is not supported,
            this rank is not in `process_set`, or an operation of that name is already in flight.
        tf.errors.FailedPreconditionError: If Horovod is not initialized, or the ranks disagree
            about shape, element type or operation.
        tf.errors.UnknownError: If a rank was lost; `hvd.HorovodInternalError.last()` says which and
            why.
    """
    checked(compression)
    results = list(tensors)
    dense = [
        (position, *compression.compress(as_tensor(tensor)))
        for position, tensor in enumerate(tensors)
    ]
    with tf.device(device_dense):
        for group in _by_type(dense):
            parts = mpi_ops._grouped_reducescatter(
                [small for _, small, _ in group],
                None,
                op,
                process_set,
                prescale_factor,
                postscale_factor,
            )
            for (position, _, context), part in zip(group, parts):
                results[position] = compression.decompress(part, context)
    return results


def set_size(process_set: ProcessSet) -> Any:
    """The number of members; in an elastic job a node, because it may change between two runs."""
    if _native.may_grow():
        return mpi_ops.size_op(set_id(process_set))
    return process_set.size()


def _check_sparse(op: int, prescale_factor: float, postscale_factor: float) -> None:
    if op == Adasum:
        raise NotImplementedError(
            "The Adasum reduction does not currently support sparse tensors. As a workaround "
            "please pass sparse_as_dense=True to DistributedOptimizer"
        )
    if op not in (Average, Sum):
        raise NotImplementedError("Only Sum and Average ops are supported with tf.IndexedSlices")
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        raise NotImplementedError("Pre/postscale_factor are not supported with tf.IndexedSlices")


def _reduce_sparse(
    slices: Any, op: int, name: str | None, process_set: ProcessSet, ignore_name_scope: bool
) -> Any:
    def gather(tensor: Any, part: str) -> Any:
        own = None if name is None else f"{name}_{part}"
        return mpi_ops.allgather(tensor, own, ignore_name_scope, process_set)

    values = gather(slices.values, "values")
    indices = gather(slices.indices, "indices")
    if op == Average:
        values = divided(values, set_size(process_set))
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


def _by_type(dense: Sequence[tuple[Any, Any, Any]]) -> list[list[tuple[Any, Any, Any]]]:
    return [[dense[place] for place in group] for group in by_type(each[1].dtype for each in dense)]
