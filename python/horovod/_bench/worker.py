"""One process of a measurement: it does what it is told, and waits asleep for the next turn.

A system (Ronde, gloo, MPI, a plain copy) is an object that prepares a task on given memory; what it
prepares is a call, which the worker checks once and then times.
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
    # Where the result of a call lies; none if there is nothing to check.
    result: Callable[[Any], int] | None = None
    # Runs so many calls and gives the seconds of one; none if they are simply made in a loop.
    run: Callable[[int], float] | None = None


class System(Protocol):
    """Something that can be measured."""

    def barrier(self) -> None:
        """Waits until all ranks are here."""

    def prepare(self, task: Task, memory: Memory) -> Prepared:
        """Gets ready; raises if this cannot be done here."""


class Worker:
    """The systems of this process, and the task that is on."""

    def __init__(self, rank: int, systems: dict[str, System]) -> None:
        self.rank = rank
        self.systems = systems
        self.openings: dict[str, Callable[[], tuple[System, str]]] = {}
        self._memory: Memory | None = None
        self._prepared: dict[str, Prepared] = {}

    def serve(self, channel: Channel) -> None:
        """Takes turns until there are no more."""
        while True:
            try:
                message = channel.receive()
                if message["do"] == "end":
                    return
                channel.send(self.on(message))
            except Closed:
                # The conductor has gone, and whoever started this process knows why.
                return

    def on(self, message: Message) -> Message:
        """Does one thing; an error is an answer, too."""
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
        # The old memory goes first: there may not be room for both.
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
        # Nobody goes to sleep on work that another rank still waits for.
        system.barrier()
        return seconds


def timed(call: Callable[[], Any], times: int) -> float:
    """The seconds of one of so many calls."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times
