"""MPI, where the launcher or the program brings it along: which library, and when it is used.

Ronde needs no MPI. Under `mpirun` the ranks meet over it, so that it is initialised and whatever
else speaks MPI in the program sees a world with the same ranks; tensors never travel over it.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from horovod import _native
from horovod.common import environment

# What a library of each family is called.
NAMES = {
    "Open MPI": ("libmpi.so.40", "libmpi.so"),
    "MPICH": ("libmpi.so.12", "libmpich.so.12", "libmpi.so"),
}
# Also as wheels rename it.
_LIBRARY = re.compile(r"lib(mpi|mpich|mpi_abi)(-[0-9a-f]+)?\.so[.\d]*")

_log = logging.getLogger("horovod")

# The library that this process has met over, or could have.
_opened: _native.Mpi | None = None
_in_use = False


def meeting(comm: object = None) -> tuple[_native.Mpi, int] | None:
    """The library and the communicator over which the ranks meet; None if they meet otherwise.

    `comm` is a communicator of mpi4py, a list of some processes, or None for all. MPI is
    initialised on the way.
    """
    global _in_use
    _in_use = False
    controller = _controller()
    started = _native.launched()
    if environment.is_launched() or controller == "gloo":
        if comm is not None:
            refuse("comm")
        return None
    launcher = started[0] if started else ""
    wanted = launcher in NAMES or controller == "mpi"
    # Whoever has a communicator has loaded the library.
    mpi = _library(launcher, _candidates(launcher) if wanted else ())
    if mpi is None:
        if controller == "mpi":
            raise ValueError(
                "HOROVOD_CONTROLLER is `mpi`, but no MPI library can be opened; install Open MPI "
                "or MPICH, or unset it"
            )
        if comm is not None:
            refuse("comm")
        return None
    if not wanted and comm is None and not mpi.is_running():
        return None
    mpi.start(environment.wants_mpi_threads())
    seat = mpi.seat(mpi.world)
    if comm is None and started and seat != started[1:]:
        # Each process has a world of its own: the library is not the launcher's.
        if wanted:
            _log.warning(
                "%s says that this is rank %d of %d, but %s says rank %d of %d; MPI is not used",
                *started,
                mpi.family,
                *seat,
            )
        return None
    _in_use = True
    return mpi, mpi.world if comm is None else _handle(mpi, comm)


def enabled() -> bool:
    """Whether the ranks of this process's world have met over MPI."""
    return _in_use


def supports_threads() -> bool:
    """Whether that MPI takes calls from many threads."""
    return _opened is not None and _opened.supports_threads()


def finish() -> None:
    """Finalises what `meeting` has initialised, if nobody else has."""
    if _opened is not None:
        _opened.finish()


def fail() -> None:
    """Sees to it that the job ends when this process, which has failed, does.

    MPICH's launcher does not end a job of several hosts by itself: ranks that have done their work
    would wait in `MPI_Finalize` for this one. Open MPI's does, with this process's own exit code.
    """
    if _opened is not None and _opened.family != "Open MPI":
        _opened.abort_at_exit()


def can_divide() -> bool:
    """Whether some ranks of the job can be a world of their own: MPI's launcher has started it."""
    launched = _native.launched()
    return _controller() == "mpi" or (launched is not None and launched[0] in NAMES)


def members(comm: Any, world: Any) -> list[int] | None:
    """The ranks of a communicator's members in the world that `world`, or all processes, make.

    None for the null communicator, which has no members that this process could know.
    """
    from mpi4py import MPI

    if comm == MPI.COMM_NULL:
        return None
    everybody = MPI.COMM_WORLD if world is None else world
    group = comm.Get_group()
    # A class method in mpi4py 3, a method in mpi4py 4: this is right for both.
    ranks = MPI.Group.Translate_ranks(group, list(range(group.Get_size())), everybody.Get_group())
    if MPI.UNDEFINED in ranks:
        raise ValueError(
            f"{comm.Get_name() or 'a communicator'} cannot be a process set: some of its processes "
            "do not belong to the world of init"
        )
    return sorted(int(rank) for rank in ranks)


def is_communicator(comm: object) -> bool:
    """Whether this is mpi4py's."""
    return type(comm).__module__.partition(".")[0] == "mpi4py"


def refuse(what: str) -> NoReturn:
    """Raises what Horovod raises where there is no MPI; `what` is to be left out of init()."""
    raise ValueError(
        "Horovod has not been built with MPI support. Start the job with mpirun or `horovodrun "
        f"--mpi`, where MPI can be opened at run time, or call init() without {what}."
    )


def _controller() -> str:
    controller = environment.controller()
    if controller not in ("", "mpi", "gloo"):
        raise ValueError(
            f"Unsupported controller type, HOROVOD_CONTROLLER is `{controller}`; it must be mpi or "
            "gloo"
        )
    return controller


def _handle(mpi: _native.Mpi, comm: object) -> int:
    if isinstance(comm, list):
        rank = mpi.seat(mpi.world)[0]
        if rank not in comm:
            raise ValueError(f"this is rank {rank} of all, which is not in init(comm={comm})")
        return mpi.part(comm)
    from mpi4py import MPI

    # The number of an MPICH handle is an int that may be negative in C.
    return int(MPI._handleof(comm)) & 0xFFFFFFFFFFFFFFFF


def _library(launcher: str, candidates: Iterable[str]) -> _native.Mpi | None:
    """The library that this process has loaded, or else the first of these that can be opened."""
    global _opened
    if _opened is not None:
        return _opened
    loaded = _loaded()
    for path in [loaded] if loaded else candidates:
        try:
            _opened = _native.Mpi(path, launcher if launcher in NAMES else None)
        except OSError as error:
            _log.debug("%s", error)
        else:
            return _opened
    return None


def _loaded() -> str | None:
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    paths = (line.split(maxsplit=5)[5] for line in maps.splitlines() if "/libmpi" in line)
    return next((path for path in paths if _LIBRARY.fullmatch(Path(path).name)), None)


def _candidates(launcher: str) -> Iterator[str]:
    """Beside the launcher's command, beside this interpreter, then where the system looks."""
    names = NAMES.get(launcher) or tuple(dict.fromkeys(sum(NAMES.values(), ())))
    folders = []
    command = shutil.which("mpirun")
    if command:
        for prefix in (Path(command).parent.parent, Path(command).resolve().parent.parent):
            folders += [prefix / "lib", prefix / "lib64", prefix / "lib" / "release"]
    folders.append(Path(sys.prefix) / "lib")
    for folder in folders:
        # `/usr/lib` is the system's own, in whatever way it is arranged.
        if folder.parent != Path("/usr"):
            yield from (str(folder / name) for name in names if (folder / name).exists())
    yield from names
