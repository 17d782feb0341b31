"""Handing tensors to the native module: the checks and the names that all collectives share.

Nothing here copies a tensor that is contiguous. Element types are checked by the native module.
`lazy` says that the caller waits at once: then it does the work itself and wakes nobody.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from horovod import _native
from horovod.common.basics import _basics
from horovod.torch.handles import Gather, MixedGroup

Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """The reduction that `op` and the old `average` ask for together."""
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    warnings.warn(
        "Parameter `average` has been replaced with `op` and will be removed in v1.0.",
        DeprecationWarning,
        stacklevel=3,
    )
    return Average if average else Sum


def allreduce(
    source: torch.Tensor,
    target: torch.Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    lazy: bool = False,
) -> int:
    """Submits a reduction of `source` into `target`, which may be the same tensor."""
    if op == Adasum:
        raise no_adasum()
    full = _full("allreduce", name)
    return _native.allreduce(source, target, full, op, prescale, postscale, lazy)


def grouped_allreduce(
    sources: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    lazy: bool = False,
) -> int:
    """Submits reductions that run together; their element types may differ."""
    if op == Adasum:
        raise no_adasum()
    full = _full("grouped_allreduce", name)
    positions: dict[torch.dtype, list[int]] = {}
    for position, tensor in enumerate(sources):
        positions.setdefault(tensor.dtype, []).append(position)
    if len(positions) == 1:
        return _native.grouped_allreduce(sources, targets, full, op, prescale, postscale, lazy)
    parts = [
        (
            _native.grouped_allreduce(
                [sources[position] for position in chosen],
                [targets[position] for position in chosen],
                f"{full}.{dtype}",
                op,
                prescale,
                postscale,
                lazy,
            ),
            chosen,
        )
        for dtype, chosen in positions.items()
    ]
    return MixedGroup(parts, len(sources)).keep()


def allgather(tensor: torch.Tensor, name: str | None, lazy: bool = False) -> Gather:
    """Submits a gathering along the first dimension."""
    return Gather(_native.allgather(tensor, _full("allgather", name), lazy), tensor)


def broadcast(
    source: torch.Tensor, target: torch.Tensor, root: int, name: str | None, lazy: bool = False
) -> int:
    """Submits a broadcast from `source` on rank `root` into `target` everywhere."""
    return _native.broadcast(source, target, _full("broadcast", name), root, lazy)


def in_place(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, if the native module can write to it."""
    if not tensor.is_cpu:
        raise _not_on_cpu(tensor)
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        raise _not_contiguous(tensor)
    return tensor


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or a contiguous copy of one that is not."""
    if not tensor.is_cpu:
        raise _not_on_cpu(tensor)
    if tensor.layout is not torch.strided:
        raise _not_contiguous(tensor)
    return tensor if tensor.is_contiguous() else tensor.detach().contiguous()


def no_adasum() -> NotImplementedError:
    """The error for a reduction that this release lacks."""
    return NotImplementedError(
        "Adasum is not in this release yet; use op=hvd.Average, or hvd.Sum with a learning rate "
        "divided by hvd.size()"
    )


def _full(kind: str, name: str | None) -> str:
    return f"{kind}.{name}" if name else f"{kind}.noname.{next(_basics.noname)}"


def _not_on_cpu(tensor: torch.Tensor) -> ValueError:
    return ValueError(
        f"horovod.torch takes CPU tensors only in this release, but this one is on "
        f"`{tensor.device}`; move it with `.cpu()` first"
    )


def _not_contiguous(tensor: torch.Tensor) -> ValueError:
    if tensor.layout is torch.strided:
        return ValueError("Tensor is required to be contiguous.")
    return ValueError(
        f"horovod.torch takes dense tensors only, but this one is `{tensor.layout}`; "
        "convert it with `.to_dense()` first"
    )
