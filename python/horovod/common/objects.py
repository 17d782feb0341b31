"""Broadcasts and gathers Python objects, for frameworks without functions of their own.

Objects travel as cloudpickle bytes between ranks of one job, which have authenticated each other.
"""

from __future__ import annotations

from typing import Any

import cloudpickle  # type: ignore[import-untyped, unused-ignore]
import numpy as np

from horovod import raw
from horovod.common.basics import _basics
from horovod.common.process_sets import ProcessSet, global_process_set

__all__ = [
    "allgather_object",
    "broadcast_object",
]


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a Python object from one rank to all others.

    The object travels as cloudpickle bytes.

    Args:
        obj: Any object that can be pickled; ignored on ranks other than `root_rank`.
        root_rank: Rank that sends, counted among all ranks of the job even if `process_set` is
            smaller (default: 0).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        The object of rank `root_rank`; there, the object itself.

    Raises:
        HorovodInternalError: If a rank was lost.
        ValueError: If Horovod is not initialized, or this rank is not in `process_set`.
    """
    name = name or "broadcast_object"
    is_root = _basics.rank() == root_rank
    data = np.frombuffer(cloudpickle.dumps(obj), np.uint8) if is_root else np.zeros(0, np.uint8)
    length = raw.broadcast(np.array([data.size]), root_rank, f"{name}.sz", process_set)
    if not is_root:
        data = np.zeros(int(length[0]), np.uint8)
    data = raw.broadcast(data, root_rank, f"{name}.t", process_set)
    return obj if is_root else cloudpickle.loads(data.tobytes())


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Collect a Python object from every rank.

    The objects travel as cloudpickle bytes.

    Args:
        obj: Any object that can be pickled.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        The objects of all ranks, in the order of the ranks.

    Raises:
        HorovodInternalError: If a rank was lost.
        ValueError: If Horovod is not initialized, or this rank is not in `process_set`.
    """
    name = name or "allgather_object"
    data = np.frombuffer(cloudpickle.dumps(obj), np.uint8)
    lengths = raw.allgather(np.array([data.size]), f"{name}.sz", process_set)
    gathered = raw.allgather(data, f"{name}.t", process_set)
    parts = np.split(gathered, np.cumsum(lengths)[:-1])
    return [cloudpickle.loads(part.tobytes()) for part in parts]
