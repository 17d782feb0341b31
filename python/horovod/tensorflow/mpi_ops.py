"""The collectives, in graphs and eagerly, with Horovod's names, arguments and defaults.

Every function creates one op of `library` with the right name and attributes. Ranks match nodes by
name: the one that is passed, or one derived from the tensor's. "All ranks" are those of the process
set; ranks in arguments are ranks of the world. What is built on these ops, such as averages of
sparse tensors, is in `reductions`; their gradients are in `gradients`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common import world as _world
from horovod.common.basics import _basics  # noqa: F401  (programs look for it here)
from horovod.common.calls import Call
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.common.reductions import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    check_scatter,
    handle_average_backwards_compatibility,
)
from horovod.common.world import *  # noqa: F403
from horovod.tensorflow import compiled
from horovod.tensorflow.library import ops
from horovod.tensorflow.util import (
    _executing_eagerly,
    as_tensor,
    label,
    listed,
    node_name,
    set_id,
)

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "add_process_set",
    "allgather",
    "alltoall",
    "broadcast",
    "broadcast_",
    "check_num_rank_power_of_2",
    "global_process_set",
    "grouped_allgather",
    "handle_average_backwards_compatibility",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "remove_process_set",
    "size_op",
    *_world.__all__,
]


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces a dense tensor."""
    tensor = as_tensor(tensor)
    name = node_name("HorovodAllreduce", name, [tensor])
    if compiled.is_compiling():
        call = Call("allreduce", name or "", process_set, op, prescale_factor, postscale_factor)
        return compiled.run(call, [tensor])[0]
    return ops.horovod_allreduce(
        tensor,
        **label(name),
        reduce_op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        ignore_name_scope=ignore_name_scope,
        process_set_id=set_id(process_set),
    )


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Reduces dense tensors of one type together."""
    if not tensors:
        return list(tensors)
    tensors = [as_tensor(tensor) for tensor in tensors]
    name = node_name("HorovodGroupedAllreduce", name, tensors)
    if compiled.is_compiling():
        call = Call("allreduce", name or "", process_set, op, prescale_factor, postscale_factor)
        return compiled.run(call, tensors)
    result = ops.horovod_grouped_allreduce(
        tensors,
        **label(name),
        reduce_op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        ignore_name_scope=ignore_name_scope,
        process_set_id=set_id(process_set),
    )
    return list(result)


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenate the tensors of all ranks along the first dimension.

    Gradients flow through it; the backward pass is also a collective, so all ranks must run it.

    Args:
        tensor: Tensor with at least one dimension. The first dimension may differ between ranks,
            the others must be the same.
        name: Name by which ranks match this operation; pass the same on every rank (default: in a
            graph, derived from the tensor's name; eagerly, ranks match operations in the order of
            the calls).
        ignore_name_scope: Whether ranks match the operation by the last part of its name only
            (default: False).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A tensor with the rows of all ranks, in the order of the ranks.

    Raises:
        TypeError: If an input cannot be converted to a dense tensor.
        tf.errors.InvalidArgumentError: If the call is invalid: the element type is not supported,
            this rank is not in `process_set`, or an operation of that name is already in flight.
        tf.errors.FailedPreconditionError: If Horovod is not initialized, or the ranks disagree
            about shape, element type or operation.
        tf.errors.UnknownError: If a rank was lost; `hvd.HorovodInternalError.last()` says which and
            why.
    """
    tensor = as_tensor(tensor)
    name = node_name("HorovodAllgather", name, [tensor])
    if compiled.is_compiling():
        call = Call("allgather", name or "", process_set)
        return compiled.run(call, [tensor])[0]
    return ops.horovod_allgather(
        tensor,
        **label(name),
        ignore_name_scope=ignore_name_scope,
        process_set_id=set_id(process_set),
    )


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Concatenate several tensors of all ranks as one operation.

    Gradients flow through it; the backward pass is also a collective, so all ranks must run it.

    Args:
        tensors: Tensors of one element type with at least one dimension, the same number on every
            rank. First dimensions may differ between ranks, the others must be the same.
        name: Name by which ranks match this operation; pass the same on every rank (default: in a
            graph, derived from the tensor's name; eagerly, ranks match operations in the order of
            the calls).
        ignore_name_scope: Whether ranks match the operation by the last part of its name only
            (default: False).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        Tensors, in the order of `tensors`.

    Raises:
        TypeError: If an input cannot be converted to a dense tensor.
        tf.errors.InvalidArgumentError: If the call is invalid: the element type is not supported,
            this rank is not in `process_set`, or an operation of that name is already in flight.
        tf.errors.FailedPreconditionError: If Horovod is not initialized, or the ranks disagree
            about shape, element type or operation.
        tf.errors.UnknownError: If a rank was lost; `hvd.HorovodInternalError.last()` says which and
            why.
    """
    if not tensors:
        return list(tensors)
    tensors = [as_tensor(tensor) for tensor in tensors]
    name = node_name("HorovodGroupedAllgather", name, tensors)
    if compiled.is_compiling():
        call = Call("allgather", name or "", process_set)
        return compiled.run(call, tensors)
    result = ops.horovod_grouped_allgather(
        tensors,
        **label(name),
        ignore_name_scope=ignore_name_scope,
        process_set_id=set_id(process_set),
    )
    return list(result)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a tensor from one rank to all others and return it.

    Gradients flow through it; the backward pass is also a collective, so all ranks must run it.

    Args:
        tensor: Tensor, variable, or anything that `tf.convert_to_tensor` takes; of the same shape
            on every rank.
        root_rank: Rank that sends, counted among all ranks of the job even if `process_set` is
            smaller.
        name: Name by which ranks match this operation; pass the same on every rank (default: in a
            graph, derived from the tensor's name; eagerly, ranks match operations in the order of
            the calls).
        ignore_name_scope: Whether ranks match the operation by the last part of its name only
            (default: False).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A tensor with what `tensor` holds on rank `root_rank`.

    Raises:
        TypeError: If an input cannot be converted to a dense tensor.
        tf.errors.InvalidArgumentError: If the call is invalid: the element type is not supported,
            this rank is not in `process_set`, or an operation of that name is already in flight.
        tf.errors.FailedPreconditionError: If Horovod is not initialized, or the ranks disagree
            about shape, element type or operation.
        tf.errors.UnknownError: If a rank was lost; `hvd.HorovodInternalError.last()` says which and
            why.
    """
    tensor = as_tensor(tensor)
    name = node_name("HorovodBroadcast", name, [tensor])
    if compiled.is_compiling():
        call = Call("broadcast", name or "", process_set, root=root_rank)
        return compiled.run(call, [tensor])[0]
    return ops.horovod_broadcast(
        tensor,
        **label(name),
        root_rank=root_rank,
        ignore_name_scope=ignore_name_scope,
        process_set_id=set_id(process_set),
    )


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrite variables with those of one rank.

    Args:
        variables: A variable or several; the same number and the same shapes on every rank.
        root_rank: Rank that sends, counted among all ranks of the job even if `process_set` is
            smaller.
        name: Name by which ranks match this operation; pass the same on every rank (default: in a
            graph, derived from the tensor's name; eagerly, ranks match operations in the order of
            the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        The variables; in a graph, the values after the assignments, to be run.

    Raises:
        ValueError: If resource variables and reference variables are mixed.
        tf.errors.InvalidArgumentError: If the call is invalid: the element type is not supported,
            this rank is not in `process_set`, or an operation of that name is already in flight.
        tf.errors.FailedPreconditionError: If Horovod is not initialized, or the ranks disagree
            about shape, element type or operation.
        tf.errors.UnknownError: If a rank was lost; `hvd.HorovodInternalError.last()` says which and
            why.
    """
    variables = listed(variables)
    kinds = {_is_resource(variable) for variable in variables}
    if len(kinds) > 1:
        raise ValueError(
            "All variables passed to broadcast_() should be of the same kind, resource or reference"
        )
    results = []
    for position, variable in enumerate(variables):
        own = None if name is None else f"{name}_{position + 1}of{len(variables)}"
        value = broadcast(variable, root_rank, own, process_set=process_set)
        assigned = variable.assign(value)
        results.append(variable if _executing_eagerly() else assigned)
    return results


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send different rows of a tensor to different ranks.

    Gradients flow through it; the backward pass is also a collective, so all ranks must run it.

    Args:
        tensor: Tensor with at least one dimension. The first dimension may differ between ranks,
            the others must be the same.
        splits: How many rows each rank of `process_set` gets, in the order of the ranks: 1-D,
            int32. Rows beyond their sum are not sent (default: the same number for every rank).
        name: Name by which ranks match this operation; pass the same on every rank (default: in a
            graph, derived from the tensor's name; eagerly, ranks match operations in the order of
            the calls).
        ignore_name_scope: Whether ranks match the operation by the last part of its name only
            (default: False).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        The rows that the ranks sent to this one, in the order of the ranks. With `splits`, a pair:
        these rows, and how many came from each rank, as a 1-D int32 tensor.

    Raises:
        TypeError: If an input cannot be converted to a dense tensor.
        tf.errors.InvalidArgumentError: If the call is invalid: the element type is not supported,
            this rank is not in `process_set`, or an operation of that name is already in flight.
        tf.errors.FailedPreconditionError: If Horovod is not initialized, or the ranks disagree
            about shape, element type or operation.
        tf.errors.UnknownError: If a rank was lost; `hvd.HorovodInternalError.last()` says which and
            why.
    """
    tensor = as_tensor(tensor)
    name = node_name("HorovodAlltoall", name, [tensor])
    if compiled.is_compiling():
        if splits is not None:
            compiled.refuse("HorovodAlltoall", " with splits, which decide the sizes of results")
        return compiled.run(Call("alltoall", name or "", process_set), [tensor])[0]
    rows = _rows([] if splits is None else splits)
    output, received = ops.horovod_alltoall(
        tensor,
        splits=rows,
        **label(name),
        ignore_name_scope=ignore_name_scope,
        process_set_id=set_id(process_set),
    )
    return output if splits is None else (output, received)


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces a dense tensor; returns this rank's part."""
    check_scatter(op)
    tensor = as_tensor(tensor)
    name = node_name("HorovodReducescatter", name, [tensor])
    if compiled.is_compiling():
        call = Call("reducescatter", name or "", process_set, op, prescale_factor, postscale_factor)
        return compiled.run(call, [tensor])[0]
    return ops.horovod_reducescatter(
        tensor,
        **label(name),
        reduce_op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        ignore_name_scope=ignore_name_scope,
        process_set_id=set_id(process_set),
    )


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Does the same for several tensors of one type together."""
    check_scatter(op)
    if not tensors:
        return list(tensors)
    tensors = [as_tensor(tensor) for tensor in tensors]
    name = node_name("HorovodGroupedReducescatter", name, tensors)
    if compiled.is_compiling():
        call = Call("reducescatter", name or "", process_set, op, prescale_factor, postscale_factor)
        return compiled.run(call, tensors)
    result = ops.horovod_grouped_reducescatter(
        tensors,
        **label(name),
        reduce_op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set_id=set_id(process_set),
    )
    return list(result)


def join() -> Any:
    """Tell the other ranks that this one has no more data, and wait until all ranks have joined.

    Meanwhile this rank contributes zeros to the reductions of the others; averages still divide by
    the number of all ranks. Other collectives fail while some rank has joined. Not in functions
    that XLA compiles.

    Returns:
        A scalar int32 tensor: the rank that joined last.

    Raises:
        tf.errors.UnknownError: If a rank was lost; `hvd.HorovodInternalError.last()` says which and
            why.
    """
    compiled.refuse("HorovodJoin")
    return ops.horovod_join()


def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Wait until all ranks have called this function.

    Not in functions that XLA compiles.

    Args:
        process_set: Ranks that take part (default: all ranks).

    Returns:
        In a graph, the operation to run.

    Raises:
        tf.errors.UnknownError: If a rank was lost; `hvd.HorovodInternalError.last()` says which and
            why.
    """
    compiled.refuse("HorovodBarrier")
    return ops.horovod_barrier(process_set_id=set_id(process_set))


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return the number of ranks at the time the operation runs.

    Unlike with `size`, a graph that outlives a change of ranks gets the new number.

    Args:
        process_set_id: Id of the process set (default: 0, all ranks).
        name: Name of the operation in the graph (default: None).

    Returns:
        A scalar int32 tensor.
    """
    compiled.refuse("HorovodSize")
    return ops.horovod_size(process_set_id=process_set_id, name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return whether this rank is in a process set at the time the operation runs.

    Args:
        process_set_id: Id of the process set (default: 0, all ranks).
        name: Name of the operation in the graph (default: None).

    Returns:
        A scalar int32 tensor: 1 for a member, 0 for other ranks, negative if there is no such set.
    """
    compiled.refuse("HorovodProcessSetIncluded")
    return ops.horovod_process_set_included(process_set_id=process_set_id, name=name)


def rank_op(name: str | None = None) -> Any:
    """Return the rank of this process at the time the operation runs.

    Args:
        name: Name of the operation in the graph (default: None).

    Returns:
        A scalar int32 tensor.
    """
    compiled.refuse("HorovodRank")
    return ops.horovod_rank(name=name)


def local_rank_op(name: str | None = None) -> Any:
    """Return the rank of this process on its host at the time the operation runs.

    Args:
        name: Name of the operation in the graph (default: None).

    Returns:
        A scalar int32 tensor.
    """
    compiled.refuse("HorovodLocalRank")
    return ops.horovod_local_rank(name=name)


def local_size_op(name: str | None = None) -> Any:
    """Return the number of ranks on this host at the time the operation runs.

    Args:
        name: Name of the operation in the graph (default: None).

    Returns:
        A scalar int32 tensor.
    """
    compiled.refuse("HorovodLocalSize")
    return ops.horovod_local_size(name=name)


def check_num_rank_power_of_2(num_rank: int) -> None:
    """Accept every number of ranks: Adasum works on any number.

    Args:
        num_rank: The number of ranks.
    """


def _rows(splits: Any) -> Any:
    try:
        rows = tf.convert_to_tensor(splits, dtype=tf.int32)
    except (TypeError, ValueError) as error:
        text = f"alltoall expects splits to contain 32-bit integer elements: {error}"
        raise tf.errors.InvalidArgumentError(None, None, text) from error
    if rows.dtype != tf.int32:
        # Inside of a function a tensor keeps its type.
        text = f"alltoall expects splits to contain 32-bit integer elements, not {rows.dtype.name}"
        raise tf.errors.InvalidArgumentError(None, None, text)
    if rows.shape.rank not in (None, 1):
        raise tf.errors.InvalidArgumentError(
            None, None, f"alltoall expects a 1D splits tensor, and this has shape {rows.shape}"
        )
    return rows


def _is_resource(variable: Any) -> bool:
    handle = getattr(variable, "handle", None)
    return handle is not None and handle.dtype == tf.resource
