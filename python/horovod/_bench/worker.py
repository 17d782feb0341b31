"""One process of a measurement: it handles requests, and sleeps while it waits for the next.

A system (Ronde, gloo, MPI, a plain copy) is an object that prepares a task on given memory; the
result is a call, which the worker checks once and then times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from horovod._bench.channel import Channel, Closed, Message
from horovod._bench.memory import Memory, Task


@dataclass
class Prepared:
    """A task that is ready to run."""

    call: Callable[[], Any]
    # Address of the result of a call; none if there is nothing to check.
    result: Callable[[Any], int] | None = None
    # Runs a number of calls and returns the seconds of one; none to make them in a loop.
    run: Callable[[int], float] | None = None


class System(Protocol):
    """Something that can be measured."""

    def barrier(self) -> None:
        """Waits until all ranks have reached it."""

    def prepare(self, task: Task, memory: Memory) -> Prepared:
        """Prepares a task; raises if that is not possible here."""


class Worker:
    """The systems of this process, and the current task."""

    def __init__(self, rank: int, systems: dict[str, System]) -> None:
        self.rank = rank
        self.systems = systems
        self.openings: dict[str, Callable[[], tuple[System, str]]] = {}
        self._memory: Memory | None = None
        self._prepared: dict[str, Prepared] = {}

    def serve(self, channel: Channel) -> None:
        """Handles requests until there are no more."""
        while True:
            try:
                message = channel.receive()
                if message["do"] == "end":
                    return
                channel.send(self.on(message))
            except Closed:
                # The scheduler is gone; the parent of this process reports why.
                return

    def on(self, message: Message) -> Message:
        """Handles one request; errors are returned as answers."""
        try:
            if message["do"] == "open":
                system, version = self.openings[message["system"]]()
                self.systems[message["system"]] = system
                return {"version": version}
            if message["do"] == "task":
                return {"bytes": self._begin(Task(**message["task"]))}
            if message["do"] == "prepare":
                self._prepare(message["system"])
                return {}
            return {"seconds": self._run(message["system"], message["times"])}
        except Exception as error:
            can = not isinstance(error, NotImplementedError)
            return {"error": f"{type(error).__name__}: {error}", "can": can}

    def _begin(self, task: Task) -> int:
        # The old memory is freed first: there may not be space for both.
        self._prepared = {}
        self._memory = None
        self._memory = Memory(task)
        return task.total

    def _prepare(self, name: str) -> None:
        memory = self._memory
        assert memory is not None, "a task comes first"
        prepared = self.systems[name].prepare(memory.task, memory)
        if prepared.result is not None:
            memory.mark(self.rank)
            made = prepared.call()
            memory.check(prepared.result(made))
            memory.zero()
        self._prepared[name] = prepared

    def _run(self, name: str, times: int) -> float:
        prepared, system = self._prepared[name], self.systems[name]
        system.barrier()
        seconds = prepared.run(times) if prepared.run else timed(prepared.call, times)
        # No rank goes to sleep while another still waits for its part.
        system.barrier()
        return seconds


def timed(call: Callable[[], Any], times: int) -> float:
    """Makes a number of calls; returns the seconds of one."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times
