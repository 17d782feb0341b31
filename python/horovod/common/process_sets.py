"""Process sets: which ranks take part in a collective.

A set is registered by all ranks together, at `init` or later with `add_process_set`, and has an id
until it is removed or the world ends. `_world` holds what is known about the sets of one world; the
native module knows the members and lets the ranks agree.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from horovod import _native
from horovod.common import children

__all__ = [
    "ProcessSet",
    "add_process_set",
    "global_process_set",
    "remove_process_set",
]


class ProcessSet:
    """Some ranks of the job, for collectives among only these.

    A set must be registered on all ranks of the job, members or not: pass it to
    `hvd.init(process_sets=[...])` or `hvd.add_process_set`. The same sets must be registered in the
    same order everywhere.

    Args:
        ranks_or_comm: Ranks of the members, in any order, or an mpi4py communicator.

    Raises:
        ValueError: If `ranks_or_comm` is neither.

    Example:
        ```python
        import numpy as np
        from horovod import raw

        raw.init(process_sets="dynamic")
        if raw.size() > 2:
            pair = raw.add_process_set([0, 1])
            if pair.included():
                raw.allreduce(np.ones(3), process_set=pair)
        ```
    """

    process_set_id: int | None = None
    """Id of the set, 0 for the set of all ranks; None while it is not registered."""
    ranks: list[int] | None = None
    """Ranks of the members, in ascending order; None until a communicator is resolved."""
    mpi_comm: object = None
    """Communicator that the set was made from, or None."""

    def __init__(self, ranks_or_comm: Iterable[int] | object) -> None:
        if type(ranks_or_comm).__module__.partition(".")[0] == "mpi4py":
            self.mpi_comm = ranks_or_comm
            return
        ranks = list(ranks_or_comm) if isinstance(ranks_or_comm, Iterable) else None
        if ranks is None or not all(isinstance(rank, int) for rank in ranks):
            raise ValueError(
                "ProcessSet should be initialized with a list of process ranks or an mpi4py Comm "
                "object"
            )
        self.ranks = sorted(ranks)

    def size(self) -> int | None:
        """Return the number of members.

        Returns:
            The number of ranks; None if the set is not registered.
        """
        members = self._members()
        return None if members is None else len(members)

    def rank(self) -> int | None:
        """Return the position of this process among the members.

        Returns:
            A number from 0 to `size() - 1`; None if the set is not registered.

        Raises:
            ValueError: If this process is not a member.
        """
        members = self._members()
        if members is None:
            return None
        if _native.rank() not in members:
            raise ValueError("Process is not part of provided process set.")
        return members.index(_native.rank())

    def included(self) -> bool | None:
        """Return whether this process is a member.

        Returns:
            True if it is; None if the set is not registered.
        """
        members = self._members()
        return None if members is None else _native.rank() in members

    def __reduce__(self) -> str | tuple[Any, ...]:
        # A copy, also in another process, refers to the same ranks.
        if self is global_process_set:
            return "global_process_set"
        if self.mpi_comm is not None:
            raise TypeError("a process set made from a communicator cannot be copied or pickled")
        return _with_members, (self.ranks, self.process_set_id)

    def _members(self) -> list[int] | None:
        if self.process_set_id is None:
            return None
        # For the global set, asking for the size raises the right error before `init`.
        size = _native.size()
        # A child process with its own interpreter has not called `init`.
        return self.ranks or list(range(size)) if self is global_process_set else self.ranks

    def __repr__(self) -> str:
        # In signatures, where it is the default, the set of all ranks prints as its name.
        return "global_process_set" if self is global_process_set else str(self)

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )


global_process_set = ProcessSet([])
"""The process set of all ranks; `ranks` is filled by `init`."""
global_process_set.process_set_id = 0


class _World:
    """The state of one world: its registered sets, and how many unnamed tensors each had."""

    def __init__(self) -> None:
        self.dynamic = False
        self.sets: list[ProcessSet] = []
        self.numbers = {0}
        self.unnamed: dict[int, Iterator[int]] = defaultdict(itertools.count)

    def find(self, ranks: list[int] | None) -> ProcessSet | None:
        return next((known for known in self.sets if known.ranks == ranks), None)

    def register(self, process_set: ProcessSet) -> None:
        ranks = process_set.ranks or []
        if any(rank < 0 for rank in ranks):
            # The native module's ranks are unsigned; it checks the rest.
            raise ValueError(f"Tried to register process set with invalid rank: {ranks[0]}")
        number: int = _native.wait(_native.add_process_set(ranks))
        process_set.process_set_id = number
        self.sets.append(process_set)
        self.numbers.add(number)
        # The id may have belonged to another set, with other members.
        self.unnamed.pop(number, None)


_world = _World()


def _with_members(ranks: list[int], number: int | None = None) -> ProcessSet:
    """The registered set of these ranks, or a new one that is not registered."""
    known = _world.find(ranks)
    if known is None:
        known = ProcessSet(ranks)
        # A child process may use a set that its parent has registered.
        is_child = children.is_starting() or _native.in_child()
        known.process_set_id = number if is_child else None
    return known


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a process set after `init`.

    All ranks of the job must call it, members or not, in the same order. Needs
    `init(process_sets="dynamic")` or `HOROVOD_DYNAMIC_PROCESS_SETS=1`.

    Args:
        process_set: The set, or the ranks of its members.

    Returns:
        The registered set.

    Raises:
        ValueError: If Horovod is not initialized, sets cannot be added in this job, or a set of
            these ranks is registered already.
        NotImplementedError: If the set was made from a communicator.
        HorovodInternalError: If a rank was lost, or the ranks disagree about the members.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    _require_dynamic("adding")
    if process_set.mpi_comm is not None:
        raise NotImplementedError(
            "a process set cannot be made from a communicator after init; pass it to "
            "hvd.init(process_sets=[...]), or pass hvd.add_process_set the ranks of the members"
        )
    if _world.find(process_set.ranks) is not None:
        raise ValueError(f"Attempted to add a duplicate process set: {process_set}")
    _world.register(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Unregister a process set.

    All ranks of the job must call it, in the same order. The id of the set may be used for another
    one afterwards.

    Args:
        process_set: A registered set.

    Returns:
        True if it was removed; False for the set of all ranks and for one that is not registered.

    Raises:
        ValueError: If Horovod is not initialized, or sets cannot be removed in this job.
        HorovodInternalError: If a rank was lost.
    """
    # Asking for the size raises the right error before `init`.
    _native.size()
    number = process_set.process_set_id
    if number is None or number == 0:
        return False
    _require_dynamic("removing")
    _native.wait(_native.remove_process_set(number))
    for known in [known for known in _world.sets if known.process_set_id == number]:
        _world.sets.remove(known)
        known.process_set_id = None
    _world.numbers.discard(number)
    process_set.process_set_id = None
    return True


def check_distinct(process_sets: Sequence[ProcessSet]) -> None:
    """Raises for a list for `init` that no world could register."""
    for position, process_set in enumerate(process_sets):
        if not isinstance(process_set, ProcessSet):
            raise ValueError(
                f"process_sets entry number {position} is a {type(process_set).__name__}; "
                'process_sets must be a list of ProcessSet or "dynamic"'
            )
        # The members of a communicator are known only when MPI runs.
        if process_set.mpi_comm is None and any(
            other.ranks == process_set.ranks for other in process_sets[:position]
        ):
            raise _duplicate(position, process_set)


def enter_world(process_sets: Sequence[ProcessSet], dynamic: bool) -> None:
    """Registers the sets given to `init`, on all ranks together."""
    global _world
    _world = _World()
    _world.dynamic = dynamic
    global_process_set.ranks = list(range(_native.size()))
    _world.sets.append(global_process_set)
    wanted = [each for each in process_sets if each is not global_process_set]
    for process_set in wanted:
        if process_set.ranks == global_process_set.ranks:
            raise _duplicate(process_sets.index(process_set), process_set)
    for process_set in wanted:
        if process_set.mpi_comm is None:
            _world.register(process_set)


def register_communicators(
    process_sets: Sequence[ProcessSet], communicators: list[list[int]]
) -> None:
    """Registers the sets made from communicators, after those made from lists.

    Each rank knows only the communicators that it belongs to; `communicators` are those of all
    ranks, given by their members. All ranks register them in the same order.
    """
    own = [each for each in process_sets if each.mpi_comm is not None and each.ranks is not None]
    for process_set in own:
        if _world.find(process_set.ranks) or sum(o.ranks == process_set.ranks for o in own) > 1:
            raise _duplicate(process_sets.index(process_set), process_set)
    for ranks in sorted(communicators):
        if _world.find(ranks) is None:
            mine = next((each for each in own if each.ranks == ranks), None)
            _world.register(mine or ProcessSet(ranks))


def enter_world_again(process_sets: Sequence[ProcessSet], dynamic: bool) -> None:
    """Gives sets passed to a second `init` the ids that the first one registered."""
    known = [_world.find(process_set.ranks) for process_set in process_sets]
    for process_set, registered in zip(process_sets, known):
        if registered is None and process_set.ranks is not None:
            raise ValueError(
                "Horovod has been initialized without the process set of ranks "
                f"{process_set.ranks}; call hvd.shutdown() before hvd.init(), or use "
                "hvd.add_process_set"
            )
    _world.dynamic = _world.dynamic or dynamic
    for process_set, registered in zip(process_sets, known):
        if registered is not None and process_set not in _world.sets:
            process_set.process_set_id = registered.process_set_id
            _world.sets.append(process_set)


def leave_world() -> None:
    """Clears the ids of all sets: they are valid in one world only."""
    global _world
    for process_set in _world.sets:
        process_set.process_set_id = None
    global_process_set.process_set_id = 0
    global_process_set.ranks = []
    _world = _World()


def registered_set(ranks: list[int]) -> ProcessSet | None:
    """The registered set of these ranks, if there is one; the set of all ranks always exists."""
    return _world.find(ranks)


def members_by_id() -> dict[int, list[int]]:
    """The ranks of every registered set."""
    # Asking for the size raises the right error before `init`.
    everyone = list(range(_native.size()))
    others = {each.process_set_id: list(each.ranks or []) for each in _world.sets}
    return {0: everyone, **{number: ranks for number, ranks in others.items() if number}}


def register_together(ranks: list[int]) -> ProcessSet:
    """The set of these ranks, registered if necessary; all ranks must call it, in the same order.

    For sets created through interfaces other than Horovod's, which need no permission.
    """
    known = _world.find(ranks)
    if known is None:
        known = ProcessSet(ranks)
        _world.register(known)
    return known


def registered_id(process_set: ProcessSet) -> int:
    """The id of a set for the native module, which checks the membership."""
    if not isinstance(process_set, ProcessSet):
        raise TypeError(
            f"process_set is {process_set!r}; pass what hvd.add_process_set or hvd.ProcessSet "
            "made, or leave it out for all ranks"
        )
    number = process_set.process_set_id
    if number is not None and number in _world.numbers:
        return number
    # Asking for the size raises the right error before `init`.
    _native.size()
    if number is not None and _native.in_child():
        # The native module raises the right error.
        return number
    raise ValueError(
        f"{process_set}: Process set provided does not exist, or has not been registered. Give it "
        "to hvd.init(process_sets=[...]) or to hvd.add_process_set first."
    )


def next_unnamed(number: int) -> int:
    """Numbers the unnamed tensors of a set, so that its members agree on their names."""
    return next(_world.unnamed[number])


def restart_unnamed() -> None:
    """Restarts the numbers of the global set: after a join the counts of the ranks differ."""
    _world.unnamed.pop(0, None)


def _require_dynamic(doing: str) -> None:
    # Asking for the size raises the right error before `init`.
    _native.size()
    if not _world.dynamic:
        raise ValueError(
            f"Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow {doing} process sets after Horovod "
            "initialization."
        )


def _duplicate(position: int, process_set: ProcessSet) -> ValueError:
    return ValueError(
        f"Horovod could not be initialized because process_sets entry number {position} is a "
        f"duplicate: {process_set}"
    )


def __getattr__(name: str) -> Any:
    # Programs access the basics through this module, although the basics depend on it.
    if name != "_basics":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from horovod.common.basics import _basics

    return _basics
