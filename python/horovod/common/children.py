"""What the child processes of a rank know about it if they start a new interpreter.

A forked child inherits the native module's memory and needs nothing from here. A child that
`multiprocessing` starts with `spawn` or `forkserver` gets a copy of its parent's process object,
in which the rank stores its numbers. While such a child is still importing the main module and
reading its arguments, that object has not arrived; until then it reads an environment variable.
Programs that a rank starts in other ways get nothing.
"""

from __future__ import annotations

import multiprocessing.process
import os
from typing import Any

from horovod import _native
from horovod.common import environment

# Process id, rank, size, local rank and size, cross rank and size, whether it has a launcher.
_ParentInfo = tuple[int, int, int, int, int, int, int, bool]

_KEY = "ronde_parent"


def publish() -> None:
    """Stores what the children of this rank may need; must be called in every new world."""
    info = _native.for_children()
    environment.leave_for_children(info)
    _carried()[_KEY] = info


def forget() -> None:
    """Removes it again: this process is no longer a rank."""
    environment.forget_parent()
    _carried().pop(_KEY, None)


def forget_unrelated() -> None:
    """Drops numbers meant for another process: a rank started this one in some other way."""
    info = _from_environment()
    if info is None or (info[0] != os.getpid() and not _is_child()):
        environment.forget_parent()


def parent() -> _ParentInfo | None:
    """The rank that started this process with `multiprocessing`, if any."""
    if is_starting():
        info = _from_environment()
        return info if info is not None and info[0] in _started_by() else None
    info = _carried().get(_KEY) if _is_child() else None
    # A child that has joined a world of its own has stored its own numbers.
    return info if info is not None and info[0] != os.getpid() else None


def is_starting() -> bool:
    """Whether this is a child process that has not received its process object yet."""
    # `multiprocessing` itself keeps track of it this way.
    return bool(getattr(multiprocessing.process.current_process(), "_inheriting", False))


def _is_child() -> bool:
    return multiprocessing.process.parent_process() is not None or is_starting()


def _carried() -> dict[str, Any]:
    """The data that the children of this process get a copy of."""
    process: Any = multiprocessing.process.current_process()
    config = getattr(process, "_config", None)
    return config if isinstance(config, dict) else {}


def _started_by() -> set[int]:
    """The processes whose numbers in the environment are valid."""
    parent = os.getppid()
    # A fork server may be in between; in an elastic job it may be from an earlier world.
    return {parent} if _native.may_grow() else {parent, _parent_of(parent)}


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The name of the program, in parentheses, may contain anything.
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return -1


def _from_environment() -> _ParentInfo | None:
    numbers = environment.parent_numbers()
    if len(numbers) != 8:
        return None
    pid, rank, size, local_rank, local_size, cross_rank, cross_size, launched = numbers
    return pid, rank, size, local_rank, local_size, cross_rank, cross_size, bool(launched)
