"""Process sets: which ranks take part in a collective.

Only the global set works in this release; other sets can be made, so that programs which define
them import, but every use of one says what to do instead.
"""

from __future__ import annotations

from collections.abc import Iterable

from horovod.common.basics import _basics


class ProcessSet:
    """Some ranks of the world, given by their numbers or as an mpi4py communicator."""

    process_set_id: int | None = None
    mpi_comm: object = None

    def __init__(self, ranks_or_comm: Iterable[int] | object) -> None:
        if type(ranks_or_comm).__module__.partition(".")[0] == "mpi4py":
            self.mpi_comm = ranks_or_comm
            self._ranks: list[int] | None = None
            return
        ranks = list(ranks_or_comm) if isinstance(ranks_or_comm, Iterable) else None
        if ranks is None or not all(isinstance(rank, int) for rank in ranks):
            raise ValueError(
                "ProcessSet should be initialized with a list of process ranks or an mpi4py Comm "
                "object"
            )
        self._ranks = sorted(ranks)

    @property
    def ranks(self) -> list[int] | None:
        """The global ranks of the members, in order."""
        return self._ranks

    def size(self) -> int | None:
        """The number of members; None if the set is not registered."""
        return None

    def rank(self) -> int | None:
        """This process among the members; None if the set is not registered."""
        return None

    def included(self) -> bool | None:
        """Whether this process is a member; None if the set is not registered."""
        return None

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )


class _GlobalProcessSet(ProcessSet):
    process_set_id = 0

    @property
    def ranks(self) -> list[int]:
        return list(range(_basics.size())) if _basics.is_initialized() else []

    def size(self) -> int:
        return _basics.size()

    def rank(self) -> int:
        return _basics.rank()

    def included(self) -> bool:
        # Asking for the rank raises the right error before `init`.
        return _basics.rank() >= 0


global_process_set: ProcessSet = _GlobalProcessSet([])


def require_global(process_set: ProcessSet) -> None:
    """Refuses a collective on any set but the global one."""
    if process_set.process_set_id == 0:
        return
    raise NotImplementedError(
        f"collectives on {process_set} are not in this release yet, only on the global process "
        "set; leave process_set out, or start a job of its own for these ranks"
    )
