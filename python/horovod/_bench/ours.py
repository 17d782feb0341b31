"""Ronde as measured: from Python, in the engine alone, and a plain copy for comparison."""

from __future__ import annotations

import ctypes
from typing import Any

from horovod import _native
from horovod._bench import models
from horovod._bench.memory import Memory, Task
from horovod._bench.worker import Prepared

SUM = 1

_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype = ctypes.c_void_p
_pointer_in.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Ronde:
    """Blocking calls of the native module."""

    def barrier(self) -> None:
        """Waits until all ranks have reached it."""
        _native.wait(_native.barrier("bench.barrier", True))

    def prepare(self, task: Task, memory: Memory) -> Prepared:
        """The call that a framework adapter makes."""
        if task.collective == "barrier":
            return Prepared(self.barrier)
        tensors = memory.tensors()
        if len(tensors) > 1:
            names = [f"bench.gradient.{number}" for number in range(len(tensors))]
            return Prepared(lambda: _step(tensors, names), lambda _: memory.source.address)
        tensor = tensors[0]
        wait, name = _native.wait, f"bench.{task.collective}.{task.bytes}"
        in_place = {
            "allreduce": lambda: wait(_native.allreduce(tensor, tensor, name, SUM, 1.0, 1.0, True)),
            "broadcast": lambda: wait(_native.broadcast(tensor, tensor, name, 0, True)),
        }
        splits = [tensor.shape[0] // task.ranks] * task.ranks
        made = {
            "allgather": lambda: wait(_native.allgather(tensor, name, True)),
            "alltoall": lambda: wait(_native.alltoall(tensor, splits, name, True)),
            "reducescatter": lambda: wait(_native.reducescatter(tensor, name, SUM, 1.0, 1.0, True)),
        }
        if task.collective in in_place:
            return Prepared(in_place[task.collective], lambda _: memory.source.address)
        return Prepared(made[task.collective], _made_at)


class Engine(Ronde):
    """Allreduce without Python between the calls."""

    def prepare(self, task: Task, memory: Memory) -> Prepared:
        """One call into the native module that makes all calls of a round."""
        if task.collective != "allreduce":
            raise NotImplementedError("only a single allreduce is measured from engine to engine")
        (tensor,) = memory.tensors()
        name = f"bench.engine.{task.bytes}"

        def run(times: int) -> float:
            return sum(_native.repeat_allreduce(tensor, name, times)) / times

        return Prepared(lambda: run(1), lambda _: memory.source.address, run)


class Arena(Ronde):
    """Allreduce of tensors in the arena, which copies nothing."""

    def prepare(self, task: Task, memory: Memory) -> Prepared:
        """A second set of the tensors, in memory that all ranks of the host share."""
        if task.collective != "allreduce" and task.collective not in models.STEPS:
            raise NotImplementedError("only reductions are done in place")
        capsule = _native.arena(memory.source.length)
        if capsule is None:
            raise NotImplementedError("there is no arena here")
        start = ctypes.c_void_p.from_address(_pointer_in(capsule, b"dltensor")).value or 0
        tensors = memory.tensors(start)
        names = [f"bench.arena.{task.collective}.{task.bytes}.{at}" for at in range(len(tensors))]

        def run(_keeps_the_memory: Any = capsule) -> None:
            _step(tensors, names)

        memory.mark(_native.rank())
        ctypes.memmove(start, memory.source.address, memory.source.length)
        run()
        memory.check(start)
        memory.zero()
        ctypes.memset(start, 0, memory.source.length)
        if len(tensors) > 1:
            return Prepared(run)
        (tensor,), (name,) = tensors, names

        def call(_keeps_the_memory: Any = capsule) -> None:
            _native.wait(_native.allreduce(tensor, tensor, name, SUM, 1.0, 1.0, True))

        return Prepared(call)


class Copy(Ronde):
    """A plain copy of the same size, on all ranks at once: the limit of the machine's memory."""

    def prepare(self, task: Task, memory: Memory) -> Prepared:
        """A copy of as many bytes; a barrier has none."""
        if task.collective == "barrier":
            raise NotImplementedError("a barrier has no bytes")
        into = ctypes.c_void_p(memory.target.address)
        start = ctypes.c_void_p(memory.source.address)
        length = memory.source.length
        return Prepared(lambda: ctypes.memmove(into, start, length))


def _step(tensors: list[Any], names: list[str]) -> None:
    """All gradients of a step, submitted one by one as in a backward pass."""
    handles = [_native.allreduce(tensor, tensor, name, SUM) for tensor, name in zip(tensors, names)]
    for handle in handles:
        _native.wait(handle)


def _made_at(made: Any) -> int:
    capsule, _ = made
    # A DLPack tensor begins with the address of its data.
    return ctypes.c_void_p.from_address(_pointer_in(capsule, b"dltensor")).value or 0
