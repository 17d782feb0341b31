"""The collectives with Horovod's names, argument orders and defaults for MXNet.

Reductions and broadcasts are operations of MXNet's own engine: a call returns at once, and whoever
uses the result waits for it there; that is also where errors come. `priority` is the engine's. The
others must know how much comes before they have an array for it, and wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from horovod import _native, raw
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.reductions import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    check_scatter,
    handle_average_backwards_compatibility,
)
from horovod.mxnet.arrays import by_type, checked, described, from_host, full_name, on_host
from horovod.mxnet.errors import mxnet_errors

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
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
    """The reduction of `tensor` over all ranks."""
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
    """Reduces `tensor` over all ranks, in place."""
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
    """The reductions of several tensors as one operation for each element type."""
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
    """Reduces several tensors in place, as one operation for each element type."""
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
    """The tensor of rank `root_rank`."""
    return _broadcast([tensor], _new(tensor), root_rank, name, priority, process_set)


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Overwrites `tensor` with that of rank `root_rank`."""
    return _broadcast([], tensor, root_rank, name, priority, process_set)


def allgather(
    tensor: Any,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The rows of all ranks, one behind the other; ranks may contribute different numbers."""
    with mxnet_errors():
        return from_host(raw.allgather(on_host(tensor), name, process_set), tensor)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """The rows of all ranks for several tensors, as one operation for each element type."""

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
    """The rows that all ranks have for this one; with `splits`, also how many came from each.

    `splits` has, for each member of the set, how many rows it gets; without, all get the same.
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
    """This rank's share of the rows of the reduction; the first ranks get one more if need be."""
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
    """Such shares of several tensors, as one operation for each element type."""

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
    """Pushes a reduction for each element type; what goes in place has no inputs."""
    outputs = list(outputs)
    for output in outputs:
        checked(output)
    with mxnet_errors():
        full, set_id = full_name(kind, name, process_set)
        groups = by_type(outputs)
        for number, places in enumerate(groups):
            part = full if len(groups) == 1 else f"{full}.{number}"
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
    groups = by_type(tensors)
    for number, places in enumerate(groups):
        part = name if name is None or len(groups) == 1 else f"{name}.{number}"
        for place, array in zip(places, run([hosts[place] for place in places], part)):
            results[place] = from_host(array, tensors[place])
    return results


def _check_share(op: int, arrays: list[Any]) -> None:
    if any(array.ndim == 0 for array in arrays):
        raise ValueError("reducescatter needs tensors with a first dimension, and this is a scalar")
    check_scatter(op)
