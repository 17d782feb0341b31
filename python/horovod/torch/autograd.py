"""The collectives that gradients flow through: reductions, allgathers and broadcasts.

Each function takes a shortcut if no gradient is needed. The backward pass of a named operation has
a name derived from it, so that ranks need not run their backward passes in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod import _native
from horovod.common.basics import _basics
from horovod.common.process_sets import ProcessSet
from horovod.torch import submit
from horovod.torch.handles import synchronize


def allreduce(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> torch.Tensor:
    """Reduces a tensor."""
    how = (name, op, prescale, postscale, process_set)
    if wants_gradient(tensor):
        reduced: torch.Tensor = _Allreduce.apply(tensor, *how)
        return reduced
    return _allreduce(tensor, *how)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    """Reduces several tensors."""
    how = (name, op, prescale, postscale, process_set)
    if wants_gradient(*tensors):
        return list(_GroupedAllreduce.apply(how, *tensors))
    return _grouped_allreduce(tensors, *how)


def allgather(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> torch.Tensor:
    """Gathers the rows of all ranks."""
    if wants_gradient(tensor):
        gathered: torch.Tensor = _Allgather.apply(tensor, name, process_set)
        return gathered
    pending = submit.allgather(submit.readable(tensor), name, process_set, lazy=True)
    return pending.wait_with_rows()[0]


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet
) -> tuple[torch.Tensor, ...]:
    """Gathers the rows of all ranks, for each tensor."""
    if wants_gradient(*tensors):
        return tuple(_GroupedAllgather.apply(name, process_set, *tensors))
    sources = [submit.readable(tensor) for tensor in tensors]
    return tuple(submit.grouped_allgather(sources, name, process_set, lazy=True).wait())


def broadcast(
    tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet
) -> torch.Tensor:
    """Broadcasts the tensor of rank `root`."""
    if wants_gradient(tensor):
        received: torch.Tensor = _Broadcast.apply(tensor, root, name, process_set)
        return received
    return _broadcast(tensor, root, name, process_set)


def wants_gradient(*tensors: torch.Tensor) -> bool:
    """Whether there may be a backward pass through these tensors."""
    for tensor in tensors:
        submit.check_tensor(tensor)
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def backward_name(name: str | None) -> str | None:
    """The name of an operation's backward pass."""
    return f"{name}.backward" if name else None


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, *how: Any) -> torch.Tensor:
        ctx.settings = (backward_name(name), *how)
        return _allreduce(tensor, name, *how)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return allreduce(grads[0], *ctx.settings), None, None, None, None, None


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, how: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        name, *rest = how
        ctx.settings = (backward_name(name), *rest)
        return tuple(_grouped_allreduce(tensors, *how))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return None, *grouped_allreduce(grads, *ctx.settings)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        pending = submit.allgather(submit.readable(tensor), name, process_set, lazy=True)
        gathered, rows = pending.wait_with_rows()
        ctx.settings = (backward_name(name), process_set, _own_rows(rows, process_set))
        return gathered

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        name, process_set, own = ctx.settings
        average = allreduce(grads[0], name, submit.Average, 1.0, 1.0, process_set)
        return average.narrow(0, *own), None, None


class _GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        sources = [submit.readable(tensor) for tensor in tensors]
        results = submit.grouped_allgather(sources, name, process_set, lazy=True).wait_with_rows()
        owns = [_own_rows(rows, process_set) for _, rows in results]
        ctx.settings = (backward_name(name), process_set, owns)
        return tuple(gathered for gathered, _ in results)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        name, process_set, owns = ctx.settings
        averages = grouped_allreduce(grads, name, submit.Average, 1.0, 1.0, process_set)
        return None, None, *(average.narrow(0, *own) for average, own in zip(averages, owns))


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.settings = (backward_name(name), root, process_set)
        return _broadcast(tensor, root, name, process_set)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        name, root, process_set = ctx.settings
        reduced = allreduce(grads[0], name, submit.Average, 1.0, 1.0, process_set)
        own = reduced if _basics.rank() == root else torch.zeros_like(reduced)
        return own, None, None, None


def _own_rows(rows: Sequence[int], process_set: ProcessSet) -> tuple[int, int]:
    """Where this rank's rows begin among those of all ranks, and how many there are."""
    rank = process_set.rank() or 0
    return sum(rows[:rank]), rows[rank]


def _allreduce(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> torch.Tensor:
    source = submit.readable(tensor)
    target = torch.empty_like(source)
    how = (name, op, prescale, postscale, process_set)
    _native.wait(submit.allreduce(source, target, *how, lazy=True))
    return target


def _grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    sources = [submit.readable(tensor) for tensor in tensors]
    targets = [torch.empty_like(source) for source in sources]
    how = (name, op, prescale, postscale, process_set)
    synchronize(submit.grouped_allreduce(sources, targets, *how, lazy=True))
    return targets


def _broadcast(
    tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet
) -> torch.Tensor:
    source = submit.readable(tensor)
    target = torch.empty_like(source)
    _native.wait(submit.broadcast(source, target, root, name, process_set, lazy=True))
    return target
