"""Joining and leaving the world, and what this build supports: the part all frameworks share.

`world` has the documented functions for users, which call the methods of `_basics`. The native
module holds the only engine of the process; this module has only what belongs to Python: the exit
of the interpreter and Horovod's messages.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import time
import traceback
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from horovod import _native
from horovod.common import children, environment, mpi
from horovod.common import process_sets as sets
from horovod.common.exceptions import WorkerRemovedError
from horovod.common.process_sets import ProcessSet

if TYPE_CHECKING:
    import ctypes


class HorovodBasics:
    """The queries and the life cycle that every framework module offers under the same names."""

    def __init__(self) -> None:
        self._exit_pid: int | None = None
        # Whether it will join at its first collective.
        self._is_late = False
        # Belongs to one world: `init` replaces it, so that handles of the old world are not
        # confused.
        self.pending: dict[int, Any] = {}
        self._process_sets: list[ProcessSet] = []
        self.worlds = 0
        """How many worlds this process has joined."""
        self.joined_at = math.inf
        """When it joined the current one, in seconds since the epoch; infinity outside a world."""

    def init(
        self, comm: object = None, process_sets: Sequence[ProcessSet] | str | None = None
    ) -> None:
        """Joins the world; does nothing if this process has already joined one."""
        _native.check_may_join()
        environment.set_up_nccl()
        communicator = _communicator(comm)
        wanted = _wanted(process_sets)
        by_communicator = [each for each in wanted if each.mpi_comm is not None]
        if by_communicator and isinstance(communicator, list):
            raise NotImplementedError(
                "process sets from communicators need a communicator as comm, not a list of ranks; "
                "call init(comm=MPI.COMM_WORLD.Create_group(...))"
            )
        dynamic = environment.allows_dynamic_sets()
        if _native.is_initialized() and not _native.in_child():
            if mpi.enabled():
                _find_members(by_communicator, communicator)
            sets.enter_world_again(wanted, dynamic)
            return
        # All ranks create sets together, so a rank that wants some must join now.
        if environment.take_latecomer() and _native.is_elastic() and not wanted:
            # The others are training: they should not wait until this process is ready.
            self._is_late = True
            _native.init_later(self.arrive)
            sets.enter_world([], dynamic)
            children.publish()
            return
        over = None if _native.has_rendezvous() else mpi.meeting(communicator)
        if over is None and by_communicator:
            mpi.refuse("process sets from communicators")
        # Before the engine: MPI must be finalized even if the other ranks do not join.
        if self._exit_pid != os.getpid():
            self._exit_pid = os.getpid()
            atexit.register(self._leave_at_exit)
        try:
            _native.init(*(over or ()))
        except WorkerRemovedError as removed:
            # This is not an error, and the program cannot do anything about it.
            print(removed, file=sys.stderr, flush=True)
            raise SystemExit(0) from None
        self.pending = {}
        self._process_sets = wanted
        self.worlds, self.joined_at = self.worlds + 1, time.time()
        children.publish()
        if _native.may_grow():
            self._update_environment()
        try:
            _find_members(by_communicator, communicator)
            sets.enter_world(wanted, dynamic)
            # A rank without communicators in its list still takes part: others may have some.
            if over and process_sets is not None and not isinstance(process_sets, str):
                sets.register_communicators(wanted, _communicators_of_all_ranks(by_communicator))
        except BaseException:
            self.shutdown()
            raise

    def shutdown(self) -> None:
        """Leaves the world; operations in flight fail. `init` can be called again afterwards."""
        self._is_late = False
        _native.shutdown()
        children.forget()
        self.joined_at = math.inf
        sets.leave_world()

    def arrive(self) -> None:
        """Joins the world, if `init` was called but has deferred joining."""
        if self._is_late:
            self.rejoin()

    def rejoin(self) -> None:
        """Leaves the world and joins the next one of an elastic job, with the same process sets."""
        self.shutdown()
        self.init(process_sets=self._process_sets)

    def is_initialized(self) -> bool:
        """Whether this process is part of a world, or a child process of one that is."""
        return _native.is_initialized()

    def start_timeline(self, file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
        """Starts a timeline in `file_path`, which rank 0 writes; a running timeline ends."""
        _native.start_timeline(file_path, mark_cycles)

    def stop_timeline(self) -> None:
        """Ends the timeline; everything until now is in the file then."""
        _native.stop_timeline()

    def rank(self) -> int:
        """This process among all."""
        return _native.rank()

    def size(self) -> int:
        """The number of processes."""
        return _native.size()

    def local_rank(self) -> int:
        """This process among those of its host."""
        return _native.local_rank()

    def local_size(self) -> int:
        """The number of processes on this host."""
        return _native.local_size()

    def cross_rank(self) -> int:
        """This host among those that have this local rank."""
        return _native.cross_rank()

    def cross_size(self) -> int:
        """The number of hosts that have this local rank."""
        return _native.cross_size()

    def is_homogeneous(self) -> bool:
        """Whether every host has the same number of ranks."""
        return _native.is_homogeneous()

    def mpi_threads_supported(self) -> bool:
        """Whether the MPI that connected the ranks supports calls from several threads."""
        if not mpi.enabled():
            raise ValueError(
                "Horovod MPI is not enabled; Please make sure it's installed and enabled."
            )
        return mpi.supports_threads()

    def mpi_enabled(self) -> bool:
        """Whether the ranks connected through MPI: under mpirun, if its library can be loaded."""
        return mpi.enabled()

    def mpi_built(self) -> bool:
        """Whether ranks can connect through MPI: always, if there is one when the job starts."""
        return True

    def gloo_enabled(self) -> bool:
        """Whether the ranks connected without MPI, which Horovod calls Gloo."""
        return not mpi.enabled()

    def gloo_built(self) -> bool:
        """Whether ranks can connect without MPI, which Horovod calls Gloo: always."""
        return True

    def nccl_built(self) -> int:
        """The version code of NCCL; 0 if there is none, or no driver for it."""
        return _native.nccl_version()

    def ddl_built(self) -> bool:
        """Whether IBM DDL is built in: never."""
        return False

    def ccl_built(self) -> bool:
        """Whether oneCCL is built in: never."""
        return False

    def cuda_built(self) -> bool:
        """Whether there is an NVIDIA driver that GPU tensors can use."""
        return _native.has_cuda()

    def rocm_built(self) -> bool:
        """Whether ROCm is built in: not in this release."""
        return False

    @cached_property
    def MPI_LIB_CTYPES(self) -> ctypes.CDLL:
        """The native module for ctypes: it has Horovod's C query functions."""
        import ctypes

        return ctypes.CDLL(_native.__file__)

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        """The members of every registered process set, by its id."""
        return sets.members_by_id()

    def _update_environment(self) -> None:
        """Updates the rank and size in the environment, which the launcher could only guess."""
        numbers = {
            "RANK": self.rank(),
            "SIZE": self.size(),
            "LOCAL_RANK": self.local_rank(),
            "LOCAL_SIZE": self.local_size(),
            "CROSS_RANK": self.cross_rank(),
            "CROSS_SIZE": self.cross_size(),
        }
        environment.update_place(numbers)

    def _leave_at_exit(self) -> None:
        # A forked child inherits the registration but not the engine.
        if self._exit_pid != os.getpid():
            return
        error = _uncaught_exception()
        _native.shutdown(error, exiting=True)
        # A failing rank must not wait for the others.
        if error is None:
            mpi.finish()
        else:
            mpi.fail()


_basics = HorovodBasics()

children.forget_unrelated()
os.register_at_fork(after_in_child=_native.forked)


def _uncaught_exception() -> str | None:
    """The exception that ends this process, with its traceback; the launcher summarizes it."""
    error: BaseException | None = getattr(sys, "last_value", None)
    # In an interactive session an exception does not end the process.
    if error is None or sys.flags.interactive or hasattr(sys, "ps1"):
        return None
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        # A failed command explains itself on stderr, if that was captured.
        said = getattr(error, "stderr", None) or ""
        said = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        return text + "".join(f"its stderr: {line}\n" for line in said.splitlines()[-3:])
    except Exception:
        return type(error).__name__


def _communicator(comm: object) -> object:
    """The mpi4py communicator, or the list of ranks, that forms the world; None for all ranks."""
    if comm is None or comm == []:
        return None
    if mpi.is_communicator(comm):
        return comm
    if not isinstance(comm, (list, tuple)) or not all(isinstance(rank, int) for rank in comm):
        raise ValueError(
            "Invalid type of argument comm. Expected list of rank integers or mpi4py.Comm object, "
            f"got {type(comm).__name__}."
        )
    # The launcher's size counts: ranks outside the list may never join.
    size = environment.size()
    if size is None:
        launched = _native.launched()
        size = launched[2] if launched else 1
    if sorted(comm) == list(range(size)):
        return None
    if not mpi.can_divide():
        raise NotImplementedError(
            "init(comm=[...]) with some ranks only works under mpirun; start the job on the ranks "
            "you want with `horovodrun -np N`, or pass the list as a process set: "
            "init(process_sets=[hvd.ProcessSet([...])])"
        )
    if len(set(comm)) < len(comm) or not all(0 <= rank < size for rank in comm):
        raise ValueError(
            f"init(comm={list(comm)}) must list distinct ranks of the {size} in the job"
        )
    return list(comm)


def _find_members(process_sets: list[ProcessSet], communicator: object) -> None:
    for process_set in process_sets:
        process_set.ranks = mpi.members(process_set.mpi_comm, communicator)


def _communicators_of_all_ranks(process_sets: list[ProcessSet]) -> list[list[int]]:
    """The members of the communicators of all ranks."""
    # Imported here because it depends on this module.
    from horovod.common.objects import allgather_object

    own = [each.ranks for each in process_sets if each.ranks is not None]
    return [ranks for each in allgather_object(own, "process_sets") for ranks in each]


def _wanted(process_sets: Sequence[ProcessSet] | str | None) -> list[ProcessSet]:
    if process_sets is None:
        return []
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(
                f'process_sets is `{process_sets}`; it must be a list of ProcessSet or "dynamic"'
            )
        environment.allow_dynamic_sets()
        return []
    wanted = list(process_sets)
    sets.check_distinct(wanted)
    return wanted
