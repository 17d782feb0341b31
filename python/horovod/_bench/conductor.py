"""Rank 0 as the conductor: who measures when, and how often.

Rounds of all systems alternate, so that what else happens on the machine meets all of them, and the
first of a round changes from round to round. A round is so many calls that it lasts a while; its
figure is the time of one call on the rank that was slowest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from horovod._bench.channel import Channel, Closed, Message
from horovod._bench.worker import Worker

# A round lasts about this long, so that the clock and the start do not matter.
ROUND_SECONDS = 0.02
MOST_CALLS = 1000
WARM_UP_CALLS = 3
# Fewer rounds say nothing about the spread.
LEAST_ROUNDS = 3


# A peer may fail; these may not.
OURS = ("ronde", "engine", "arena", "memcpy")


class Refused(Exception):
    """A system cannot do what it was asked for."""


class Unsupported(Refused):
    """It never can."""


class Report(Protocol):
    """Where results go."""

    def send(self, message: Message) -> None:
        """Passes a message on to the command."""


class Together(Protocol):
    """Processes that do everything together."""

    def ask(self, message: Message) -> list[Message]:
        """All answers, in rank order; raises `Refused` if one is an error."""

    def dismiss(self) -> None:
        """Nobody has another turn."""


class Group:
    """The processes of one world, each at the end of a channel."""

    def __init__(self, own: Worker | None, others: Sequence[Channel]) -> None:
        self._own = own
        self._others = others

    def ask(self, message: Message) -> list[Message]:
        """All answers, in rank order; raises `Refused` if one is an error."""
        for channel in self._others:
            channel.send(message)
        answers = [self._own.on(message)] if self._own else []
        answers += [channel.receive() for channel in self._others]
        return unrefused(answers)

    def dismiss(self) -> None:
        """Nobody has another turn."""
        for channel in self._others:
            try:
                channel.send({"do": "end"})
            except Closed:
                continue


def unrefused(answers: list[Message]) -> list[Message]:
    """The answers, unless one is an error."""
    for rank, answer in enumerate(answers):
        if "error" in answer:
            kind = Refused if answer.get("can", True) else Unsupported
            raise kind(f"rank {rank}: {answer['error']}")
    return answers


class Conductor:
    """The systems by name, each with the processes it runs in; the first one is Ronde."""

    def __init__(self, report: Report, rounds: int, seconds: float | None) -> None:
        self.systems: dict[str, Together] = {}
        self._report = report
        self._rounds = rounds
        self._seconds = seconds

    def leave_out(self, name: str, reason: object) -> None:
        """A system is not there: that is said, and the rest goes on."""
        self._report.send({"note": f"{name} is left out: {reason}"})

    def measure(self, task: dict[str, Any]) -> None:
        """All rounds of one task on all systems that can do it."""
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
