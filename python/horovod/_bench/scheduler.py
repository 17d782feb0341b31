"""Rank 0 as the scheduler: which system measures when, and how often.

Rounds of all systems alternate, so that other work on the machine affects all of them, and a
different system goes first each time. A round has enough calls to last a while; its figure is the
time of one call on the slowest rank.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from horovod._bench.channel import Channel, Closed, Message
from horovod._bench.worker import Worker

# A round lasts about this long, so that clock resolution and start-up do not matter.
ROUND_SECONDS = 0.02
MOST_CALLS = 1000
WARM_UP_CALLS = 3
# Fewer rounds say nothing about the spread.
LEAST_ROUNDS = 3


# A peer may fail; these may not.
OURS = ("ronde", "engine", "arena", "memcpy")


class Refused(Exception):
    """A system could not do what it was asked to."""


class Unsupported(Refused):
    """A system does not support a task at all."""


class ReportSink(Protocol):
    """Receives results."""

    def send(self, message: Message) -> None:
        """Sends a message to the command."""


class Processes(Protocol):
    """Processes that handle every request together."""

    def ask(self, message: Message) -> list[Message]:
        """Sends a request; returns all answers in rank order, or raises `Refused` for an error."""

    def dismiss(self) -> None:
        """Tells the processes that there is no more work."""


class Group:
    """The processes of one world, each at the end of a channel."""

    def __init__(self, own: Worker | None, others: Sequence[Channel]) -> None:
        self._own = own
        self._others = others

    def ask(self, message: Message) -> list[Message]:
        """Sends a request; returns all answers in rank order, or raises `Refused` for an error."""
        for channel in self._others:
            channel.send(message)
        answers = [self._own.on(message)] if self._own else []
        answers += [channel.receive() for channel in self._others]
        return unrefused(answers)

    def dismiss(self) -> None:
        """Tells the processes that there is no more work."""
        for channel in self._others:
            try:
                channel.send({"do": "end"})
            except Closed:
                continue


def unrefused(answers: list[Message]) -> list[Message]:
    """Returns the answers, or raises if one is an error."""
    for rank, answer in enumerate(answers):
        if "error" in answer:
            kind = Refused if answer.get("can", True) else Unsupported
            raise kind(f"rank {rank}: {answer['error']}")
    return answers


class Scheduler:
    """Measures systems, each given by name with the processes it runs in; the first is Ronde."""

    def __init__(self, report: ReportSink, rounds: int, seconds: float | None) -> None:
        self.systems: dict[str, Processes] = {}
        self._report = report
        self._rounds = rounds
        self._seconds = seconds

    def leave_out(self, name: str, reason: object) -> None:
        """Reports that a system is not measured; the rest continues."""
        self._report.send({"note": f"{name} is left out: {reason}"})

    def measure(self, task: dict[str, Any]) -> None:
        """Measures all rounds of one task on all systems that support it."""
        groups = {id(group): group for group in self.systems.values()}
        answers: list[Message] = []
        for group in groups.values():
            answers += group.ask({"do": "task", "task": task})
        calls = {}
        for name in list(self.systems):
            count = self._calls(name, task)
            if count is not None:
                calls[name] = count
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        start = time.monotonic()
        for number in range(self._rounds if self._seconds is None else 1_000_000):
            names = list(calls)
            first = number % len(names)
            for name in names[first:] + names[:first]:
                seconds[name].append(self._round(name, calls[name]))
            late = self._seconds is not None and time.monotonic() - start >= self._seconds
            if late and number + 1 >= LEAST_ROUNDS:
                break
        row = {**task, "bytes": answers[0]["bytes"], "seconds": seconds}
        self._report.send({"row": row})

    def _calls(self, name: str, task: dict[str, Any]) -> int | None:
        try:
            self.systems[name].ask({"do": "prepare", "system": name})
            self._round(name, WARM_UP_CALLS)
            once = self._round(name, WARM_UP_CALLS)
        except Unsupported:
            return None
        except Refused as refusal:
            if name in OURS:
                raise
            self.leave_out(f"{name} for {task['collective']}", refusal)
            return None
        return max(1, min(MOST_CALLS, int(ROUND_SECONDS / once)))

    def _round(self, name: str, times: int) -> float:
        answers = self.systems[name].ask({"do": "run", "system": name, "times": times})
        return max(float(answer["seconds"]) for answer in answers)
