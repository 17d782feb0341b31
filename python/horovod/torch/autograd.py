"""The collectives that gradients flow through.

Each function takes the short way if no gradient is wanted. A named operation's backward pass has
a name made from it, so that ranks need not run their backward passes in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod import _native
from horovod.common.basics import _basics
from horovod.torch import submit
from horovod.torch.handles import synchronize


def allreduce(
    tensor: torch.Tensor, name: str | None, op: int, prescale: float, postscale: float
) -> torch.Tensor:
    """The reduced tensor."""
    if tensor.requires_grad and torch.is_grad_enabled():
        reduced: torch.Tensor = _Allreduce.apply(tensor, name, op, prescale, postscale)
        return reduced
    return _allreduce(tensor, name, op, prescale, postscale)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor], name: str | None, op: int, prescale: float, postscale: float
) -> list[torch.Tensor]:
    """The reduced tensors."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return list(_GroupedAllreduce.apply(name, op, prescale, postscale, *tensors))
    return _grouped_allreduce(tensors, name, op, prescale, postscale)


def allgather(tensor: torch.Tensor, name: str | None) -> torch.Tensor:
    """The rows of all ranks."""
    if tensor.requires_grad and torch.is_grad_enabled():
        gathered: torch.Tensor = _Allgather.apply(tensor, name)
        return gathered
    return submit.allgather(submit.readable(tensor), name, lazy=True).wait()


def broadcast(tensor: torch.Tensor, root: int, name: str | None) -> torch.Tensor:
    """The tensor of rank `root`."""
    if tensor.requires_grad and torch.is_grad_enabled():
        received: torch.Tensor = _Broadcast.apply(tensor, root, name)
        return received
    return _broadcast(tensor, root, name)


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, op: int, pre: float, post: float
    ) -> torch.Tensor:
        ctx.settings = (_backward(name), op, pre, post)
        return _allreduce(tensor, name, op, pre, post)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return allreduce(grads[0], *ctx.settings), None, None, None, None


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: int, pre: float, post: float, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.settings = (_backward(name), op, pre, post)
        return tuple(_grouped_allreduce(tensors, name, op, pre, post))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return None, None, None, None, *grouped_allreduce(grads, *ctx.settings)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None) -> torch.Tensor:
        flight = submit.allgather(submit.readable(tensor), name, lazy=True)
        gathered, rows = flight.wait_with_rows()
        rank = _basics.rank()
        ctx.settings = (_backward(name), sum(rows[:rank]), rows[rank])
        return gathered

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        name, start, length = ctx.settings
        return allreduce(grads[0], name, submit.Average, 1.0, 1.0).narrow(0, start, length), None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root: int, name: str | None) -> torch.Tensor:
        ctx.settings = (_backward(name), root)
        return _broadcast(tensor, root, name)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        name, root = ctx.settings
        reduced = allreduce(grads[0], name, submit.Average, 1.0, 1.0)
        return reduced if _basics.rank() == root else torch.zeros_like(reduced), None, None


def _allreduce(
    tensor: torch.Tensor, name: str | None, op: int, prescale: float, postscale: float
) -> torch.Tensor:
    source = submit.readable(tensor)
    target = torch.empty_like(source)
    _native.wait(submit.allreduce(source, target, name, op, prescale, postscale, lazy=True))
    return target


def _grouped_allreduce(
    tensors: Sequence[torch.Tensor], name: str | None, op: int, prescale: float, postscale: float
) -> list[torch.Tensor]:
    sources = [submit.readable(tensor) for tensor in tensors]
    targets = [torch.empty_like(source) for source in sources]
    synchronize(
        submit.grouped_allreduce(sources, targets, name, op, prescale, postscale, lazy=True)
    )
    return targets


def _broadcast(tensor: torch.Tensor, root: int, name: str | None) -> torch.Tensor:
    source = submit.readable(tensor)
    target = torch.empty_like(source)
    _native.wait(submit.broadcast(source, target, root, name, lazy=True))
    return target


def _backward(name: str | None) -> str | None:
    return f"{name}.backward" if name else None
