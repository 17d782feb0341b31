"""Reductions as programs ask for them: dense and sparse tensors, compressed, one or many.

A sparse tensor (`tf.IndexedSlices`) is reduced by gathering everybody's slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod import _native
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
    """The reduction of the tensors of all ranks: their average unless `op` says otherwise.

    A `tf.IndexedSlices` stays one: it holds the slices of all ranks then.
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
    """The reductions of several tensors, which run together; sparse ones may be among them."""
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
    """This rank's share of the rows of the reduction; the first ranks get one more if need be."""
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
    """The same for several tensors, which run together."""
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
    groups: dict[Any, list[tuple[Any, Any, Any]]] = {}
    for entry in dense:
        groups.setdefault(entry[1].dtype, []).append(entry)
    return list(groups.values())
