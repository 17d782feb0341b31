"""What variables of the environment tell this process, and what it tells others by them.

The one place in Python that reads or writes variables of Horovod's and Ronde's names. They say how
the process was started; what has become of it since is asked of the native module. That one reads
the engine's settings at every `init`, and once whether the job is elastic. What is written here is
for child processes and for the user's program, never for another part of this package.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

_TRUE = frozenset({"1", "true", "yes", "on"})
_PARENT = "RONDE_PARENT"


def is_launched() -> bool:
    """Whether `horovodrun` has started this process, or somebody who does as it does."""
    return "HOROVOD_RANK" in os.environ


def rank() -> int:
    """The rank that this process was told to be, for whoever must know before it has joined."""
    return int(os.environ.get("HOROVOD_RANK", "0"))


def size() -> int | None:
    """The number of ranks that it was told, if it was."""
    told = os.environ.get("HOROVOD_SIZE")
    return None if told is None else int(told)


def host() -> str | None:
    """Its host, by the name that the user has given it, if it was told."""
    return os.environ.get("HOROVOD_HOSTNAME") or None


def slot() -> int:
    """Its place among the ranks of its host."""
    return int(os.environ.get("HOROVOD_LOCAL_RANK", "0"))


def controller() -> str:
    """How the ranks are to meet: `mpi`, `gloo` or, if that is left to us, nothing."""
    return os.environ.get("HOROVOD_CONTROLLER", "").lower()


def wants_mpi_threads() -> bool:
    """Whether MPI may be asked to take calls from many threads."""
    return os.environ.get("HOROVOD_MPI_THREADS_DISABLE", "0") in ("", "0")


def allows_dynamic_sets() -> bool:
    """Whether process sets may be added and removed after `init`."""
    return os.environ.get("HOROVOD_DYNAMIC_PROCESS_SETS", "").lower() in _TRUE


def allow_dynamic_sets() -> None:
    """Says so, as Horovod's `init(process_sets="dynamic")` does, from now on."""
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"


def take_latecomer() -> bool:
    """Whether the job trained before this process began. Asked again, and in its children: no."""
    return os.environ.pop("RONDE_LATECOMER", None) == "1"


def tell_place(numbers: dict[str, int]) -> None:
    """Corrects, for the user's program, what the launcher could only guess: `RANK` and the like."""
    for name, number in numbers.items():
        os.environ[f"HOROVOD_{name}"] = str(number)
        if name in _TORCHS:
            os.environ[_TORCHS[name]] = str(number)


# PyTorch's names for some of these numbers.
_TORCHS = {
    "RANK": "RANK",
    "SIZE": "WORLD_SIZE",
    "LOCAL_RANK": "LOCAL_RANK",
    "LOCAL_SIZE": "LOCAL_WORLD_SIZE",
}


def tell_children(numbers: Iterable[int]) -> None:
    """Leaves the numbers of this rank for child processes that have nothing else of it yet."""
    os.environ[_PARENT] = " ".join(str(int(number)) for number in numbers)


def told_by_parent() -> list[int]:
    """The numbers that a rank has left there; nothing if there are none."""
    try:
        return [int(number) for number in os.environ.get(_PARENT, "").split()]
    except ValueError:
        return []


def forget_parent() -> None:
    """Takes them away, so that no child process reads them."""
    os.environ.pop(_PARENT, None)
