"""What others ask of torch about GPUs; the native module, about tensors on them."""

from __future__ import annotations

import torch

from horovod import _native


def has_gpu() -> bool:
    """Whether torch finds a GPU."""
    return torch.cuda.is_available()


def _current_stream(index: int) -> int:
    """The stream that this thread's code runs on, as a number."""
    return torch.cuda.current_stream(index).cuda_stream


# The same without an object; torch's own compiler calls it, too.
current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _current_stream)


def allocate(like: torch.Tensor, rows: int, stream: int) -> torch.Tensor:
    """A new tensor with this many rows, from the memory of a stream."""
    shape = (rows, *like.shape[1:])
    theirs = torch.cuda.ExternalStream(  # type: ignore[no-untyped-call, unused-ignore]
        stream, like.device
    )
    with torch.cuda.stream(theirs):
        return torch.empty(shape, dtype=like.dtype, device=like.device)


def register() -> None:
    """Lets the native module ask."""
    _native.use_streams(current_stream, allocate)
