"""What the environment says about this process, and which variables are passed to ranks."""

from __future__ import annotations

import os

from horovod import _native

# The variables of possible launchers; the first one whose variables are set wins.
_PAIRS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """The rank and size from the launcher's variables; (0, 1) without a launcher."""
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
    """Whether a variable of this name is passed from the launcher's environment to the ranks."""
    return _native.is_exportable(v)
