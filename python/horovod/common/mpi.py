"""MPI, if the launcher or the program uses it: which library to load, and when to use it.

Ronde does not need MPI. Under `mpirun` the ranks find each other over it, so that it is initialized
and other MPI code in the program sees a world with the same ranks; tensors never travel over it.
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

# File names of the libraries of each family.
NAMES = {
    "Open MPI": ("libmpi.so.40", "libmpi.so"),
    "MPICH": ("libmpi.so.12", "libmpich.so.12", "libmpi.so"),
}
# Wheels rename it this way.
_LIBRARY = re.compile(r"lib(mpi|mpich|mpi_abi)(-[0-9a-f]+)?\.so[.\d]*")

_log = logging.getLogger("horovod")

# The library that this process has loaded.
_opened: _native.Mpi | None = None
_in_use = False


def meeting(comm: object = None) -> tuple[_native.Mpi, int] | None:
    """The library and communicator over which the ranks connect; None if they use no MPI.

    `comm` is an mpi4py communicator, a list of some processes, or None for all. This initializes
    MPI.
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
    # A program that has a communicator has loaded the library.
    mpi = _library(launcher, _candidates(launcher) if wanted else ())
    if mpi is None:
        if controller == "mpi":
            raise ValueError(
                "HOROVOD_CONTROLLER is `mpi`, but no MPI library can be loaded; install Open MPI "
                "or MPICH, or unset it"
            )
        if comm is not None:
            refuse("comm")
        return None
    if not wanted and comm is None and not mpi.is_running():
        return None
    mpi.start(environment.wants_mpi_threads())
    place = mpi.rank_and_size(mpi.world)
    if comm is None and started and place != started[1:]:
        # The library is not the launcher's, so each process is in its own MPI world.
        if wanted:
            _log.warning(
                "%s says that this is rank %d of %d, but %s says rank %d of %d; MPI is not used",
                *started,
                mpi.family,
                *place,
            )
        return None
    _in_use = True
    return mpi, mpi.world if comm is None else _handle(mpi, comm)


def enabled() -> bool:
    """Whether the ranks of this process's world connected through MPI."""
    return _in_use


def supports_threads() -> bool:
    """Whether that MPI supports calls from several threads."""
    return _opened is not None and _opened.supports_threads()


def finish() -> None:
    """Finalizes MPI if `meeting` initialized it and nothing else has finalized it."""
    if _opened is not None:
        _opened.finish()


def fail() -> None:
    """Makes the whole job end together with this process, which has failed.

    MPICH's launcher does not end a job on several hosts: ranks that are done would wait for this
    one in `MPI_Finalize`. Open MPI's launcher does, with the exit code of this process.
    """
    if _opened is not None and _opened.family != "Open MPI":
        _opened.abort_at_exit()


def can_divide() -> bool:
    """Whether some ranks of the job can form their own world: only under MPI's launcher."""
    launched = _native.launched()
    return _controller() == "mpi" or (launched is not None and launched[0] in NAMES)


def members(comm: Any, world: Any) -> list[int] | None:
    """The ranks of a communicator's members in `world`, or among all processes.

    None for the null communicator, whose members this process cannot know.
    """
    from mpi4py import MPI

    if comm == MPI.COMM_NULL:
        return None
    all_processes = MPI.COMM_WORLD if world is None else world
    group = comm.Get_group()
    # A class method in mpi4py 3, a method in mpi4py 4: this call works with both.
    ranks = MPI.Group.Translate_ranks(
        group, list(range(group.Get_size())), all_processes.Get_group()
    )
    if MPI.UNDEFINED in ranks:
        raise ValueError(
            f"{comm.Get_name() or 'a communicator'} cannot be a process set: some of its processes "
            "do not belong to the world of init"
        )
    return sorted(int(rank) for rank in ranks)


def is_communicator(comm: object) -> bool:
    """Whether this is an mpi4py communicator."""
    return type(comm).__module__.partition(".")[0] == "mpi4py"


def refuse(what: str) -> NoReturn:
    """Raises Horovod's error for missing MPI; `what` is the argument of init() to leave out."""
    raise ValueError(
        "Horovod has not been built with MPI support. Start the job with mpirun or `horovodrun "
        f"--mpi`, where MPI can be loaded at run time, or call init() without {what}."
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
        rank = mpi.rank_and_size(mpi.world)[0]
        if rank not in comm:
            raise ValueError(f"this is rank {rank} of all, which is not in init(comm={comm})")
        return mpi.part(comm)
    from mpi4py import MPI

    # An MPICH handle is an int that may be negative in C.
    return int(MPI._handleof(comm)) & 0xFFFFFFFFFFFFFFFF


def _library(launcher: str, candidates: Iterable[str]) -> _native.Mpi | None:
    """The library that this process has loaded, or else the first candidate that loads."""
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
    """Next to the launcher's command, next to this interpreter, then the system's search path."""
    names = NAMES.get(launcher) or tuple(dict.fromkeys(sum(NAMES.values(), ())))
    folders = []
    command = shutil.which("mpirun")
    if command:
        for prefix in (Path(command).parent.parent, Path(command).resolve().parent.parent):
            folders += [prefix / "lib", prefix / "lib64", prefix / "lib" / "release"]
    folders.append(Path(sys.prefix) / "lib")
    for folder in folders:
        # `/usr/lib` belongs to the system, whatever its layout.
        if folder.parent != Path("/usr"):
            yield from (str(folder / name) for name in names if (folder / name).exists())
    yield from names
