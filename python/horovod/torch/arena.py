"""Gradients in memory that all ranks of a host see, so that reducing them copies nothing.

Only gradients that stay from step to step move there: one that is made anew in every backward pass
would have to be copied, which costs as much as it saves. The tensor object stays the same, and its
memory lives as long as it does, whatever becomes of the world or the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from horovod import _native


def settle(gradients: Iterable[torch.Tensor]) -> None:
    """Moves gradients into the arena, with what is in them, as long as there is room."""
    if not _native.is_initialized():
        return
    for gradient in gradients:
        if not _is_plain(gradient) or _native.in_arena(gradient.data_ptr()):
            continue
        if not _is_alone(gradient):
            continue
        capsule = _native.arena(gradient.nbytes)
        if capsule is None:
            return
        block = from_dlpack(capsule).view(gradient.dtype).view(gradient.shape)
        with torch.no_grad():
            block.copy_(gradient)
            gradient.set_(block.untyped_storage(), 0, gradient.shape, gradient.stride())


def _is_plain(gradient: torch.Tensor) -> bool:
    return (
        type(gradient) is torch.Tensor
        and gradient.is_cpu
        and gradient.layout is torch.strided
        and gradient.is_contiguous()
        and gradient.numel() > 0
    )


def _is_alone(gradient: torch.Tensor) -> bool:
    """Whether a gradient is all there is in its memory, and no other tensor looks at that."""
    users: Any = getattr(torch._C, "_storage_Use_Count", None)
    storage = gradient.untyped_storage()
    if users is None or storage.nbytes() != gradient.nbytes:
        return False
    # The gradient itself, and the object that was made to ask.
    alone: bool = users(storage._cdata) == 2
    return alone
