"""Gradients in memory that all ranks of a host share, so that reducing them copies nothing.

Only gradients that persist from step to step are moved there: one that is created in every backward
pass would have to be copied, which costs as much as it saves. The tensor object stays the same, and
its memory lives as long as the tensor, whatever happens to the world or the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from horovod import _native


def settle(gradients: Iterable[torch.Tensor]) -> None:
    """Moves gradients into the arena, keeping their values, as long as there is space."""
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
    """Whether a gradient fills its memory and shares it with no other tensor."""
    users: Any = getattr(torch._C, "_storage_Use_Count", None)
    storage = gradient.untyped_storage()
    if users is None or storage.nbytes() != gradient.nbytes:
        return False
    # The gradient itself, and the object that was created for this check.
    alone: bool = users(storage._cdata) == 2
    return alone
