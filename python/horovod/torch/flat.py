"""Converts tensors of any shape to the rows of numbers that the engine moves, and back.

`torch.distributed` specifies how many elements go where, whatever their shape; so everything is
one-dimensional here. Element types that the engine does not know are sent as bytes: they are never
reduced.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from horovod.torch import submit

_KNOWN = {
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    getattr(torch, "uint16", torch.bool),
}


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in order, in the tensor's own memory if it is contiguous."""
    return submit.readable(tensor).detach().reshape(-1)


def movable(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in order, or their bytes."""
    elements = flat(tensor)
    return elements if elements.dtype in _KNOWN else elements.view(torch.uint8)


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements of several tensors, concatenated."""
    return flat(tensors[0]) if len(tensors) == 1 else torch.cat([flat(each) for each in tensors])


def units(tensor: torch.Tensor) -> int:
    """How many rows of the engine one element takes."""
    return 1 if tensor.dtype in _KNOWN else tensor.element_size()


def fill(target: torch.Tensor, elements: torch.Tensor) -> torch.Tensor:
    """Writes elements, or their bytes, into a tensor of any shape."""
    target.detach().copy_(elements.view(target.dtype).view(target.shape))
    if elements.is_cuda:
        # Its memory came from the stream that submitted, and this one may be another.
        elements.record_stream(torch.cuda.current_stream(elements.device))
    return target


def deal(targets: Sequence[torch.Tensor], received: torch.Tensor, rows: Sequence[int]) -> None:
    """Writes what came from each rank into the tensor for that rank."""
    for rank, (target, sent) in enumerate(zip(targets, rows)):
        wanted = target.numel() * units(target)
        if wanted != sent:
            raise ValueError(
                f"rank {rank} of the group sent {sent // units(target)} elements, but the tensor "
                f"for them has {target.numel()}"
            )
    for target, part in zip(targets, torch.split(received, list(rows))):
        fill(target, part)


def even(numel: int, size: int, what: str) -> int:
    """The equal share of each of `size` ranks; raises if it does not divide evenly."""
    if numel % size:
        raise ValueError(f"{what} has {numel} elements, which {size} ranks cannot share evenly")
    return numel // size
