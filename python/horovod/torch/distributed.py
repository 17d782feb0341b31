"""The backend `ronde` of `torch.distributed`: `init_process_group("ronde")` in a job of horovodrun.

`horovod.torch` registers it when it is imported; newer PyTorch finds it by itself, through the
entry point of the package. Groups are implemented in `process_group`, which is imported when the
first group is created.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from horovod import _native
from horovod.common.basics import _basics
from horovod.common.process_sets import ProcessSet, registered_set

__all__ = [
    "NAME",
    "register",
]

NAME = "ronde"
"""Name of the backend, for `torch.distributed.init_process_group`."""


def register() -> None:
    """Register the backend `ronde` with `torch.distributed`; once is enough.

    `import horovod.torch` does it, and newer PyTorch does it by itself.

    Example:
        ```python
        import horovod.torch
        import torch
        import torch.distributed as dist

        dist.init_process_group("ronde", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
        dist.all_reduce(torch.ones(3))
        dist.destroy_process_group()
        ```
    """
    if dist.is_available() and not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: Any, _backend_options: object) -> Any:
    from horovod.torch.process_group import RondeProcessGroup

    _basics.init()
    ranks = list(options.global_ranks_in_group)
    if not ranks:
        _check_world(options.group_rank, options.group_size)
        ranks = list(range(options.group_size))
    # Only members get here, so a set, which needs all ranks, cannot be registered.
    return RondeProcessGroup(known_set(ranks), options.group_id)


def known_set(ranks: list[int]) -> ProcessSet:
    """Return the process set of some ranks, for a group of `torch.distributed`.

    Args:
        ranks: The ranks, in ascending order.

    Returns:
        The registered set.

    Raises:
        NotImplementedError: If the ranks are not in ascending order.
        ValueError: If there is no such set.
    """
    if ranks != sorted(ranks):
        raise NotImplementedError(
            f"the ranks of a ronde group must be in ascending order, but these are {ranks}"
        )
    known = registered_set(ranks)
    if known is None:
        raise ValueError(
            f"the ranks {ranks} are not a process set yet, and only its members take part here; "
            f"call `hvd.add_process_set({ranks})` on all ranks first, or use a newer PyTorch and "
            "new_group without use_local_synchronization"
        )
    return known


def _check_world(rank: int, size: int) -> None:
    ours = (_native.rank(), _native.size())
    if ours != (rank, size):
        raise RuntimeError(
            f"torch.distributed was initialized as rank {rank} of {size}, but in the job this is "
            f"rank {ours[0]} of {ours[1]}; start the job with `horovodrun -np {size}`, and let "
            "init_process_group take rank and world_size from the environment"
        )
