"""Collectives that give each rank different rows, and that gradients flow through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.process_sets import ProcessSet
from horovod.torch import submit
from horovod.torch.autograd import allgather, backward_name, grouped_allgather, wants_gradient
from horovod.torch.splits import Splits, rows_to_send


def alltoall(
    tensor: torch.Tensor, splits: Splits | None, name: str | None, process_set: ProcessSet
) -> tuple[torch.Tensor, torch.Tensor]:
    """Exchanges rows; returns the received rows and how many came from each rank."""
    rows = rows_to_send(tensor, splits, process_set)
    if wants_gradient(tensor):
        received, numbers = _Alltoall.apply(tensor, rows, name, process_set)
        return received, numbers
    return _alltoall(tensor, rows, name, process_set)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> torch.Tensor:
    """Reduces a tensor; returns this rank's rows."""
    how = (name, op, prescale, postscale, process_set)
    if wants_gradient(tensor):
        share: torch.Tensor = _Reducescatter.apply(tensor, *how)
        return share
    return _reducescatter(tensor, *how)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    """Reduces several tensors; returns this rank's rows of each."""
    how = (name, op, prescale, postscale, process_set)
    if wants_gradient(*tensors):
        return list(_GroupedReducescatter.apply(how, *tensors))
    return _grouped_reducescatter(tensors, *how)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, rows: list[int], name: str | None, process_set: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor]:
        received, numbers = _alltoall(tensor, rows, name, process_set)
        ctx.mark_non_differentiable(numbers)
        ctx.settings = (numbers.tolist(), backward_name(name), process_set)
        ctx.left = tensor.shape[0] - sum(rows)
        return received, numbers

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        grad, _ = alltoall(grads[0], *ctx.settings)
        if ctx.left:
            # Rows that were not sent.
            grad = torch.cat([grad, grad.new_zeros((ctx.left, *grad.shape[1:]))])
        return grad, None, None, None


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, *how: Any) -> torch.Tensor:
        ctx.settings = (backward_name(name), _gradient_factor(*how), how[-1])
        return _reducescatter(tensor, name, *how)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        name, factor, process_set = ctx.settings
        return allgather(grads[0] * factor, name, process_set), None, None, None, None, None


class _GroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, how: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        name, *rest = how
        ctx.settings = (backward_name(name), _gradient_factor(*rest), rest[-1])
        return tuple(_grouped_reducescatter(tensors, *how))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        name, factor, process_set = ctx.settings
        return None, *grouped_allgather([grad * factor for grad in grads], name, process_set)


def _gradient_factor(op: int, prescale: float, postscale: float, process_set: ProcessSet) -> float:
    # Horovod's rule: the number of ranks times the gradient of the sum of their losses.
    members = (process_set.size() or 1) if op == submit.Sum else 1
    return prescale * postscale * members


def _alltoall(
    tensor: torch.Tensor, rows: list[int], name: str | None, process_set: ProcessSet
) -> tuple[torch.Tensor, torch.Tensor]:
    source = submit.readable(tensor)
    result: tuple[torch.Tensor, torch.Tensor] = submit.alltoall(
        source, rows, name, process_set, lazy=True
    ).wait()
    return result


def _reducescatter(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> torch.Tensor:
    source = submit.readable(tensor)
    how = (name, op, prescale, postscale, process_set)
    return submit.reducescatter(source, *how, lazy=True).wait_with_rows()[0]


def _grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    sources = [submit.readable(tensor) for tensor in tensors]
    how = (name, op, prescale, postscale, process_set)
    return submit.grouped_reducescatter(sources, *how, lazy=True).wait()
