"""The collectives with Horovod's names, argument orders and defaults for MXNet.

Reductions and broadcasts are operations of MXNet's own engine: a call returns at once, and
operations that use the result wait for it and raise its errors. `priority` is the engine's. The
other collectives must know the size of the result before they can allocate it, so they block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from horovod import _native, raw
from horovod.common.calls import by_type, full_name
from horovod.common.process_sets import ProcessSet, global_process_set
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
from horovod.mxnet.arrays import checked, described, from_host, number, on_host
from horovod.mxnet.errors import mxnet_errors

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """Reduce an array over all ranks and return the result.

    Returns at once; operations that use the result wait for it.

    Args:
        tensor: Array on the CPU; any shape, the same on every rank.
        average: Deprecated, use `op`: True means `hvd.Average`, False means `hvd.Sum` (default:
            None).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        priority: Priority in MXNet's engine; higher goes first (default: 0).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).
        op: Reduction: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product` (default:
            `hvd.Average`).

    Returns:
        A new array with the shape and element type of `tensor`, the same on every rank.

    Raises:
        mxnet.base.MXNetError: If a rank was lost, the ranks disagree about shape, element type or
            operation, or the call is invalid. Raised when the result is used.
        AssertionError: If `op` is `hvd.Adasum`.
    """
    how = (_reduction(op, average), prescale_factor, postscale_factor)
    output = _new(tensor)
    _reduce("horovod_allreduce", [tensor], [output], name, how, priority, process_set)
    return output


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """Reduce an array over all ranks, in place.

    Returns at once; operations that use the result wait for it.

    Args:
        tensor: Array on the CPU; any shape, the same on every rank. It is overwritten.
        average: Deprecated, use `op`: True means `hvd.Average`, False means `hvd.Sum` (default:
            None).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        priority: Priority in MXNet's engine; higher goes first (default: 0).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).
        op: Reduction: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product` (default:
            `hvd.Average`).

    Returns:
        `tensor` itself.

    Raises:
        mxnet.base.MXNetError: If a rank was lost, the ranks disagree about shape, element type or
            operation, or the call is invalid. Raised when the result is used.
        AssertionError: If `op` is `hvd.Adasum`.
    """
    how = (_reduction(op, average), prescale_factor, postscale_factor)
    _reduce("horovod_allreduce", [], [tensor], name, how, priority, process_set)
    return tensor


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """Reduce several arrays over all ranks as one operation.

    Returns at once; operations that use the result wait for it.

    Args:
        tensors: Arrays on the CPU; the same number and the same shapes on every rank. Element types
            may be mixed.
        average: Deprecated, use `op`: True means `hvd.Average`, False means `hvd.Sum` (default:
            None).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        priority: Priority in MXNet's engine; higher goes first (default: 0).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).
        op: Reduction: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product` (default:
            `hvd.Average`).

    Returns:
        New arrays, in the order of `tensors`.

    Raises:
        mxnet.base.MXNetError: If a rank was lost, the ranks disagree about shape, element type or
            operation, or the call is invalid. Raised when the result is used.
        AssertionError: If `op` is `hvd.Adasum`.
    """
    how = (_reduction(op, average), prescale_factor, postscale_factor)
    outputs = [_new(tensor) for tensor in tensors]
    kind = "horovod_grouped_allreduce"
    return _reduce(kind, tensors, outputs, name, how, priority, process_set)


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """Reduce several arrays over all ranks as one operation, in place.

    Returns at once; operations that use the result wait for it.

    Args:
        tensors: Arrays on the CPU; the same number and the same shapes on every rank. They are
            overwritten. Element types may be mixed.
        average: Deprecated, use `op`: True means `hvd.Average`, False means `hvd.Sum` (default:
            None).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        priority: Priority in MXNet's engine; higher goes first (default: 0).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).
        op: Reduction: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product` (default:
            `hvd.Average`).

    Returns:
        The arrays themselves, in the order of `tensors`.

    Raises:
        mxnet.base.MXNetError: If a rank was lost, the ranks disagree about shape, element type or
            operation, or the call is invalid. Raised when the result is used.
        AssertionError: If `op` is `hvd.Adasum`.
    """
    how = (_reduction(op, average), prescale_factor, postscale_factor)
    kind = "horovod_grouped_allreduce"
    return _reduce(kind, [], list(tensors), name, how, priority, process_set)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send an array from one rank to all others and return it.

    Returns at once; operations that use the result wait for it.

    Args:
        tensor: Array on the CPU; any shape, the same on every rank.
        root_rank: Rank that sends, counted among all ranks of the job even if `process_set` is
            smaller.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        priority: Priority in MXNet's engine; higher goes first (default: 0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A new array with what `tensor` holds on rank `root_rank`.

    Raises:
        mxnet.base.MXNetError: If a rank was lost, the ranks disagree about shape, element type or
            operation, or the call is invalid. Raised when the result is used.
    """
    return _broadcast([tensor], _new(tensor), root_rank, name, priority, process_set)


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Overwrite an array with that of one rank.

    Returns at once; operations that use the result wait for it.

    Args:
        tensor: Array on the CPU; any shape, the same on every rank. It is overwritten.
        root_rank: Rank that sends, counted among all ranks of the job even if `process_set` is
            smaller.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        priority: Priority in MXNet's engine; higher goes first (default: 0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        `tensor` itself.

    Raises:
        mxnet.base.MXNetError: If a rank was lost, the ranks disagree about shape, element type or
            operation, or the call is invalid. Raised when the result is used.
    """
    return _broadcast([], tensor, root_rank, name, priority, process_set)


def allgather(
    tensor: Any,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenate the arrays of all ranks along the first dimension.

    Args:
        tensor: Array on the CPU with at least one dimension. The first dimension may differ between
            ranks, the others must be the same.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        priority: Accepted for compatibility with Horovod (default: 0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A new array with the rows of all ranks, in the order of the ranks.

    Raises:
        mxnet.base.MXNetError: If a rank was lost, the ranks disagree about shape, element type or
            operation, or the call is invalid. It is also a `HorovodInternalError` or a
            `ValueError`.
    """
    with mxnet_errors():
        return from_host(raw.allgather(on_host(tensor), name, process_set), tensor)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Concatenate several arrays of all ranks as one operation.

    Args:
        tensors: Arrays on the CPU with at least one dimension, the same number on every rank. First
            dimensions may differ between ranks, the others must be the same.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        priority: Accepted for compatibility with Horovod (default: 0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        New arrays, in the order of `tensors`.

    Raises:
        mxnet.base.MXNetError: If a rank was lost, the ranks disagree about shape, element type or
            operation, or the call is invalid. It is also a `HorovodInternalError` or a
            `ValueError`.
    """

    def gather(arrays: list[Any], name: str | None) -> list[Any]:
        return raw.grouped_allgather(arrays, name, process_set)

    with mxnet_errors():
        return _grouped(tensors, name, gather)


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send different rows of an array to different ranks.

    Args:
        tensor: Array on the CPU with at least one dimension. The first dimension may differ between
            ranks, the others must be the same.
        splits: How many rows each rank of `process_set` gets, in the order of the ranks. Rows
            beyond their sum are not sent (default: the same number for every rank).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        priority: Accepted for compatibility with Horovod (default: 0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        The rows that the ranks sent to this one, in the order of the ranks. With `splits`, a pair:
        these rows, and how many came from each rank, as an int32 array.

    Raises:
        mxnet.base.MXNetError: If a rank was lost, the ranks disagree about shape, element type or
            operation, or the call is invalid. It is also a `HorovodInternalError` or a
            `ValueError`.
    """
    with mxnet_errors():
        rows = splits.asnumpy() if isinstance(splits, mx.nd.NDArray) else splits
        received, numbers = raw.alltoall(on_host(tensor), rows, name, process_set)
        result = from_host(received, tensor)
    return result if splits is None else (result, mx.nd.array(numbers, dtype="int32"))


def reducescatter(
    tensor: Any,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce an array over all ranks and return this rank's share of the rows.

    Rows are split evenly; if they do not divide by the number of ranks, the first ranks get one
    extra row.

    Args:
        tensor: Array on the CPU with at least one dimension, of the same shape on every rank.
        op: Reduction: `hvd.Average` or `hvd.Sum` (default: `hvd.Average`).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        priority: Accepted for compatibility with Horovod (default: 0).
        process_set: Ranks that take part (default: all ranks).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).

    Returns:
        A new array with this rank's rows.

    Raises:
        mxnet.base.MXNetError: If a rank was lost, the ranks disagree about shape, element type or
            operation, or the call is invalid. It is also a `HorovodInternalError` or a
            `ValueError`.
    """
    with mxnet_errors():
        host = on_host(tensor)
        _check_share(op, [host])
        factors = (prescale_factor, postscale_factor)
        return from_host(raw.reducescatter(host, name, op, *factors, process_set), tensor)


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduce several arrays as one operation and return this rank's share of the rows.

    Rows are split evenly; if they do not divide by the number of ranks, the first ranks get one
    extra row.

    Args:
        tensors: Arrays on the CPU with at least one dimension; the same number and the same shapes
            on every rank. Element types may be mixed.
        op: Reduction: `hvd.Average` or `hvd.Sum` (default: `hvd.Average`).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        priority: Accepted for compatibility with Horovod (default: 0).
        process_set: Ranks that take part (default: all ranks).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).

    Returns:
        New arrays with this rank's rows, in the order of `tensors`.

    Raises:
        mxnet.base.MXNetError: If a rank was lost, the ranks disagree about shape, element type or
            operation, or the call is invalid. It is also a `HorovodInternalError` or a
            `ValueError`.
    """

    def scatter(arrays: list[Any], name: str | None) -> list[Any]:
        _check_share(op, arrays)
        factors = (prescale_factor, postscale_factor)
        return raw.grouped_reducescatter(arrays, name, op, *factors, process_set)

    with mxnet_errors():
        return _grouped(tensors, name, scatter)


def _reduction(op: int | None, average: bool | None) -> int:
    op = handle_average_backwards_compatibility(op, average)
    assert op != Adasum, "Adasum is not available for MXNet; use Average or Sum"
    return op


def _new(tensor: Any) -> Any:
    checked(tensor)
    return mx.nd.empty(tensor.shape, tensor.context, tensor.dtype)


def _reduce(
    kind: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    name: str | None,
    how: tuple[int, float, float],
    priority: int,
    process_set: ProcessSet,
) -> list[Any]:
    """Pushes a reduction for each element type; in-place operands are not in the inputs."""
    outputs = list(outputs)
    for output in outputs:
        checked(output)
    with mxnet_errors():
        full, set_id = full_name(kind, name, process_set)
        groups = by_type(number(output) for output in outputs)
        for count, places in enumerate(groups):
            part = full if len(groups) == 1 else f"{full}.{count}"
            sources = [described(inputs[place]) for place in places] if inputs else []
            targets = [described(outputs[place]) for place in places]
            _native.mxnet_push(part, set_id, (*how, 0), sources, targets, priority)
    return outputs


def _broadcast(
    inputs: list[Any],
    output: Any,
    root: int,
    name: str | None,
    priority: int,
    process_set: ProcessSet,
) -> Any:
    with mxnet_errors():
        full, set_id = full_name("horovod_broadcast", name, process_set)
        sources = [described(tensor) for tensor in inputs]
        how = (None, 1.0, 1.0, root)
        _native.mxnet_push(full, set_id, how, sources, [described(output)], priority)
    return output


def _grouped(tensors: Sequence[Any], name: str | None, run: Any) -> list[Any]:
    results: list[Any] = [None] * len(tensors)
    hosts = [on_host(tensor) for tensor in tensors]
    groups = by_type(number(tensor) for tensor in tensors)
    for count, places in enumerate(groups):
        part = name if name is None or len(groups) == 1 else f"{name}.{count}"
        for place, array in zip(places, run([hosts[place] for place in places], part)):
            results[place] = from_host(array, tensors[place])
    return results


def _check_share(op: int, arrays: list[Any]) -> None:
    if any(array.ndim == 0 for array in arrays):
        raise ValueError("reducescatter needs tensors with a first dimension, and this is a scalar")
    check_scatter(op)
