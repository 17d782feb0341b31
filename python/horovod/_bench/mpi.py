"""A rank of MPI: `mpirun` starts it, and it calls the library directly through ctypes.

Open MPI's handles are addresses of its symbols; those of the MPICH family (which includes Intel
MPI) are numbers. A call through ctypes costs about a microsecond more than one from C.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from horovod._bench import models
from horovod._bench.channel import Channel
from horovod._bench.memory import Memory, Task
from horovod._bench.worker import Prepared, Worker

# Element types and the sum, as Open MPI's symbols and as the numbers of the MPICH family.
TYPES = {
    "float32": ("ompi_mpi_float", 0x4C00040A),
    "float64": ("ompi_mpi_double", 0x4C00080B),
    "uint8": ("ompi_mpi_unsigned_char", 0x4C000102),
    "int8": ("ompi_mpi_signed_char", 0x4C000118),
    "int16": ("ompi_mpi_short", 0x4C000203),
    "uint16": ("ompi_mpi_unsigned_short", 0x4C000204),
    "int32": ("ompi_mpi_int", 0x4C000405),
    "int64": ("ompi_mpi_long", 0x4C000807),
}
SUM = ("ompi_mpi_op_sum", 0x58000003)
WORLD = ("ompi_mpi_comm_world", 0x44000000)


class Mpi:
    """Blocking calls of the MPI library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._is_open_mpi = hasattr(library, WORLD[0])
        self._in_place = ctypes.c_void_p(1 if self._is_open_mpi else -1)
        self._check(library.MPI_Init(None, None))
        self._world = self._handle(WORLD)
        self._sum = self._handle(SUM)

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self._number("MPI_Comm_rank")

    @property
    def size(self) -> int:
        """The number of processes."""
        return self._number("MPI_Comm_size")

    @property
    def version(self) -> str:
        """Name and version that the library reports."""
        text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
        self._library.MPI_Get_library_version(text, ctypes.byref(length))
        first = text.value.decode(errors="replace").split(",")[0].split("\n")[0]
        return " ".join(first.replace("Version:", "").split())

    def barrier(self) -> None:
        """Waits until all ranks have reached it."""
        self._library.MPI_Barrier(self._world)

    def finish(self) -> None:
        """Finalizes MPI."""
        self._library.MPI_Finalize()

    def prepare(self, task: Task, memory: Memory) -> Prepared:
        """The call that a C program would make."""
        if task.collective == "barrier":
            return Prepared(self.barrier)
        if task.dtype not in TYPES:
            raise NotImplementedError(f"MPI has no {task.dtype}")
        if task.collective in models.STEPS:
            return Prepared(self._step(memory), lambda _: memory.source.address)
        (count,) = task.counts
        kind, world, add = self._handle(TYPES[task.dtype]), self._world, self._sum
        start = ctypes.c_void_p(memory.source.address)
        into = ctypes.c_void_p(memory.target.address)
        here, all_of, part = self._in_place, ctypes.c_int(count), ctypes.c_int(count // task.ranks)
        arguments: dict[str, tuple[str, tuple[Any, ...]]] = {
            "allreduce": ("MPI_Allreduce", (here, start, all_of, kind, add, world)),
            "broadcast": ("MPI_Bcast", (start, all_of, kind, ctypes.c_int(0), world)),
            "allgather": ("MPI_Allgather", (start, all_of, kind, into, all_of, kind, world)),
            "alltoall": ("MPI_Alltoall", (start, part, kind, into, part, kind, world)),
            "reducescatter": ("MPI_Reduce_scatter_block", (start, into, part, kind, add, world)),
        }
        name, values = arguments[task.collective]
        function = getattr(self._library, name)
        in_place = task.collective in ("allreduce", "broadcast")
        result = memory.source.address if in_place else memory.target.address
        return Prepared(lambda: function(*values), lambda _: result)

    def _step(self, memory: Memory) -> Callable[[], None]:
        """A step in buckets, copied in and out, one after the other."""
        kind, element = self._handle(TYPES[memory.task.dtype]), memory.task.element
        base, flat = memory.source.address, memory.target.address
        rows = []
        for row in models.buckets(memory.places):
            at, moves = flat, []
            for place, size in row:
                moves.append((at, base + place, size))
                at += size
            rows.append((moves, ctypes.c_int((at - flat) // element)))
        start = ctypes.c_void_p(flat)

        def call() -> None:
            for moves, count in rows:
                for into, tensor, size in moves:
                    ctypes.memmove(into, tensor, size)
                self._library.MPI_Allreduce(
                    self._in_place, start, count, kind, self._sum, self._world
                )
                for into, tensor, size in moves:
                    ctypes.memmove(tensor, into, size)

        return call

    def _handle(self, names: tuple[str, int]) -> Any:
        if self._is_open_mpi:
            symbol = ctypes.c_char.in_dll(self._library, names[0])
            return ctypes.c_void_p(ctypes.addressof(symbol))
        return ctypes.c_int(names[1])

    def _number(self, function: str) -> int:
        number = ctypes.c_int()
        self._check(getattr(self._library, function)(self._world, ctypes.byref(number)))
        return number.value

    def _check(self, code: int) -> None:
        if code != 0:
            raise RuntimeError(f"MPI returned error {code}")


def load() -> ctypes.CDLL:
    """The library that belongs to the `mpirun` on the PATH, or the system's."""
    names = ["libmpi.so", "libmpi.so.40", "libmpi.so.12", "libmpich.so.12"]
    places = []
    launcher = shutil.which("mpirun")
    if launcher:
        for prefix in (Path(launcher).parent.parent, Path(launcher).resolve().parent.parent):
            places += [prefix / "lib", prefix / "lib64", prefix / "lib" / "release"]
    found = [str(place / name) for place in places for name in names if (place / name).exists()]
    system = ctypes.util.find_library("mpi")
    for candidate in [*found, *([system] if system else []), *names]:
        try:
            # Open MPI's plug-ins look up their symbols in the whole process.
            return ctypes.CDLL(candidate, mode=os.RTLD_GLOBAL | os.RTLD_NOW)
        except OSError:
            continue
    raise OSError("there is an `mpirun`, but no libmpi.so next to it or in the system")


def main() -> None:
    """Joins MPI's world, then measures when told."""
    mpi = Mpi(load())
    channel = Channel.to(sys.argv[1])
    channel.send({"group": "mpi", "rank": mpi.rank, "size": mpi.size, "version": mpi.version})
    Worker(mpi.rank, {"mpi": mpi}).serve(channel)
    mpi.finish()


if __name__ == "__main__":
    main()
