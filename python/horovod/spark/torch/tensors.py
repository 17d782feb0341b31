"""Arrays as tensors, and the device on which a rank trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import horovod.torch as hvd

if TYPE_CHECKING:
    from numpy.typing import NDArray


def device(wants_gpu: bool) -> torch.device:
    """The device of this rank, of the same type on all."""
    has = wants_gpu and torch.cuda.is_available()
    kinds = hvd.allgather_object("cuda" if has else "cpu")
    if len(set(kinds)) > 1:
        listed = ", ".join(f"rank {rank}: {kind}" for rank, kind in enumerate(kinds))
        raise RuntimeError(
            f"All ranks don't have same device type! {listed}; give every rank a GPU, or set "
            "use_gpu=False"
        )
    if not has:
        return torch.device("cpu")
    chosen = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen


def tensor(array: NDArray[Any], dtype: torch.dtype, place: torch.device) -> torch.Tensor:
    """An array as a tensor: floats as the model has them, integers of 64 bits."""
    # Arrays that share the memory of a file may not be written, which torch warns about.
    own = torch.from_numpy(array if array.flags.writeable else array.copy())
    wanted = dtype if own.is_floating_point() else torch.int64
    return own.to(place, torch.bool if own.dtype == torch.bool else wanted)
