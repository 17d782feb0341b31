"""Submits tensors to the native module: the checks and the names that all collectives share.

Nothing here copies a contiguous tensor. The native module checks element types. `lazy` says that
the caller waits at once: it then does the work itself and wakes no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from horovod import _native
from horovod.common.calls import by_type, full_name
from horovod.common.process_sets import ProcessSet
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
from horovod.torch.handles import Exchange, Gather, GatherGroup, Group

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "handle_average_backwards_compatibility",
]


def allreduce(
    source: torch.Tensor,
    target: torch.Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    lazy: bool = False,
) -> int:
    """Submits a reduction of `source` into `target`, which may be the same tensor."""
    full, number = full_name("allreduce", name, process_set)
    return _native.allreduce(source, target, full, op, prescale, postscale, lazy, number)


def grouped_allreduce(
    sources: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    lazy: bool = False,
) -> int:
    """Submits reductions that run together; their element types may differ."""
    full, number = full_name("grouped_allreduce", name, process_set)

    def part(chosen: Sequence[int], full: str) -> int:
        return _native.grouped_allreduce(
            [sources[position] for position in chosen],
            [targets[position] for position in chosen],
            full,
            op,
            prescale,
            postscale,
            lazy,
            number,
        )

    parts = _by_type(sources, full, part)
    return parts[0][0] if len(parts) == 1 else Group(parts, len(sources)).keep()


def allgather(
    tensor: torch.Tensor, name: str | None, process_set: ProcessSet, lazy: bool = False
) -> Gather:
    """Submits a gathering along the first dimension."""
    full, number = full_name("allgather", name, process_set)
    return Gather(_native.allgather(tensor, full, lazy, number), tensor)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet, lazy: bool = False
) -> GatherGroup:
    """Submits allgathers that run together; their element types may differ."""
    full, number = full_name("grouped_allgather", name, process_set)

    def part(chosen: Sequence[int], full: str) -> int:
        return _native.grouped_allgather([tensors[each] for each in chosen], full, lazy, number)

    return GatherGroup(_by_type(tensors, full, part), tensors)


def broadcast(
    source: torch.Tensor,
    target: torch.Tensor,
    root: int,
    name: str | None,
    process_set: ProcessSet,
    lazy: bool = False,
) -> int:
    """Submits a broadcast from `source` on rank `root` into `target` everywhere."""
    full, number = full_name("broadcast", name, process_set)
    return _native.broadcast(source, target, full, root, lazy, number)


def alltoall(
    tensor: torch.Tensor,
    rows: list[int],
    name: str | None,
    process_set: ProcessSet,
    lazy: bool = False,
) -> Exchange:
    """Submits an exchange of rows: the given number of rows, in order, for each rank."""
    full, number = full_name("alltoall", name, process_set)
    return Exchange(_native.alltoall(tensor, rows, full, lazy, number), tensor)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    lazy: bool = False,
) -> Gather:
    """Submits a reduction of which each rank gets its share of the rows."""
    _check_reducescatter([tensor], op)
    full, number = full_name("reducescatter", name, process_set)
    handle = _native.reducescatter(tensor, full, op, prescale, postscale, lazy, number)
    return Gather(handle, tensor)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    lazy: bool = False,
) -> GatherGroup:
    """Submits several such reductions that run together; their element types may differ."""
    _check_reducescatter(tensors, op)
    full, number = full_name("grouped_reducescatter", name, process_set)

    def part(chosen: Sequence[int], full: str) -> int:
        inputs = [tensors[position] for position in chosen]
        return _native.grouped_reducescatter(inputs, full, op, prescale, postscale, lazy, number)

    return GatherGroup(_by_type(tensors, full, part), tensors)


def check_tensor(value: object) -> None:
    """Raises for anything that is not a torch tensor, with advice on how to convert it."""
    if not isinstance(value, torch.Tensor):
        raise _not_a_tensor(value)


def in_place(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, if the native module can write to it."""
    check_tensor(tensor)
    if not (tensor.is_cpu or tensor.is_cuda):
        raise _wrong_device(tensor)
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        raise _not_contiguous(tensor)
    return tensor


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or a contiguous copy of one that is not."""
    check_tensor(tensor)
    if not (tensor.is_cpu or tensor.is_cuda):
        raise _wrong_device(tensor)
    if tensor.layout is not torch.strided:
        raise _not_contiguous(tensor)
    return tensor if tensor.is_contiguous() else tensor.detach().contiguous()


def _by_type(
    tensors: Sequence[torch.Tensor], full: str, submit: Callable[[Sequence[int], str], int]
) -> list[tuple[int, Sequence[int]]]:
    """Submits one native group for each element type; returns handles and their positions."""
    groups = by_type(tensor.dtype for tensor in tensors)
    if len(groups) == 1:
        return [(submit(groups[0], full), groups[0])]
    return [(submit(each, f"{full}.{tensors[each[0]].dtype}"), each) for each in groups]


def _check_reducescatter(tensors: Sequence[torch.Tensor], op: int) -> None:
    check_scatter(op)
    if any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError("Reducescatter does not support scalar inputs")


def _not_a_tensor(value: object) -> TypeError:
    kind = type(value)
    if isinstance(value, (list, tuple)):
        advice = (
            "for several tensors call the grouped form, such as hvd.grouped_allreduce, or make one "
            "tensor of them with torch.tensor(...)"
        )
    elif kind.__module__.partition(".")[0] == "numpy":
        advice = (
            "make it one with torch.as_tensor(...), or call horovod.raw, whose collectives take "
            "NumPy arrays as they are"
        )
    elif hasattr(kind, "__dlpack__"):
        advice = "make it one with torch.from_dlpack(...), or call the module of its own framework"
    else:
        advice = "make it one with torch.tensor(...), or send it with hvd.broadcast_object"
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    return TypeError(f"horovod.torch takes torch tensors, but this is a `{name}`; {advice}")


def _wrong_device(tensor: torch.Tensor) -> ValueError:
    return ValueError(
        f"horovod.torch takes tensors on the CPU or on an NVIDIA GPU, but this one is on "
        f"`{tensor.device}`; move it with `.cpu()` first"
    )


def _not_contiguous(tensor: torch.Tensor) -> ValueError:
    if tensor.layout is torch.strided:
        return ValueError("Tensor is required to be contiguous.")
    return ValueError(
        f"horovod.torch takes dense tensors only, but this one is `{tensor.layout}`; "
        "convert it with `.to_dense()` first"
    )
