"""What a rank's child processes know of it when they start with an interpreter of their own.

A forked child inherits the native module's memory and needs nothing from here. A child that
`multiprocessing` starts by `spawn` or `forkserver` carries a copy of its parent's process object,
and there the rank leaves its numbers. While such a child still imports the main module and reads
its arguments, that object has not come yet: until then a variable of the environment counts.
Programs that a rank starts in other ways are on their own.
"""

from __future__ import annotations

import multiprocessing.process
import os
from typing import Any

from horovod import _native
from horovod.common import environment

# Process, rank, size, local rank and size, cross rank and size, and whether it has a launcher.
_Told = tuple[int, int, int, int, int, int, int, bool]

_KEY = "ronde_parent"


def tell() -> None:
    """Leaves what the children of this rank may ask for; to be called in every new world."""
    told = _native.for_children()
    environment.tell_children(told)
    _carried()[_KEY] = told


def forget() -> None:
    """Takes it back: this process is no rank any more."""
    environment.forget_parent()
    _carried().pop(_KEY, None)


def forget_strangers() -> None:
    """Drops what was meant for others: this process was started by a rank, but is not its child."""
    told = _from_environment()
    if told is None or (told[0] != os.getpid() and not _is_child()):
        environment.forget_parent()


def parent() -> _Told | None:
    """The rank that has started this process by `multiprocessing`, if one has."""
    if is_starting():
        told = _from_environment()
        return told if told is not None and told[0] in _started_by() else None
    told = _carried().get(_KEY) if _is_child() else None
    # A child that has joined a world of its own has told this to itself.
    return told if told is not None and told[0] != os.getpid() else None


def is_starting() -> bool:
    """Whether this is a child process that has not got its process object yet."""
    # So `multiprocessing` itself remembers it.
    return bool(getattr(multiprocessing.process.current_process(), "_inheriting", False))


def _is_child() -> bool:
    return multiprocessing.process.parent_process() is not None or is_starting()


def _carried() -> dict[str, Any]:
    """What the children of this process get a copy of."""
    process: Any = multiprocessing.process.current_process()
    config = getattr(process, "_config", None)
    return config if isinstance(config, dict) else {}


def _started_by() -> set[int]:
    """The processes whose word in the environment counts."""
    parent = os.getppid()
    # A server that forks stands between; in an elastic job it may be from an earlier world.
    return {parent} if _native.may_grow() else {parent, _parent_of(parent)}


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The name of the program, in parentheses, may hold anything.
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return -1


def _from_environment() -> _Told | None:
    numbers = environment.told_by_parent()
    if len(numbers) != 8:
        return None
    pid, rank, size, local_rank, local_size, cross_rank, cross_size, launched = numbers
    return pid, rank, size, local_rank, local_size, cross_rank, cross_size, bool(launched)
