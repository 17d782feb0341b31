"""What the environment says of this process, and what of it reaches the ranks."""

from __future__ import annotations

import os

from horovod import _native

# Who may have started this process, by its variables; the first whose variables are set counts.
_PAIRS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """The rank of this process and their number, from the launcher's variables; (0, 1) without."""
    for rank, size in _PAIRS:
        values = os.environ.get(rank), os.environ.get(size)
        if values == (None, None):
            continue
        if values[0] is None or values[1] is None:
            raise RuntimeError(
                f"Could not determine process rank and size: of {rank} and {size} only one is set"
            )
        return int(values[0]), int(values[1])
    return 0, 1


def is_exportable(v: str) -> bool:
    """Whether a variable of this name goes from the launcher's environment to the ranks'."""
    return _native.is_exportable(v)
