"""The Spark tasks of one job, run from a thread of the driver.

The thread waits until Spark could run them, submits them, and tells the job if Spark gives up.
Whatever happens, `end` leaves no task behind.
"""

from __future__ import annotations

import itertools
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, NamedTuple

from horovod.spark.cluster import Cluster, Task

_FAILED = "Spark job has failed, see the error above."

_NUMBERS = itertools.count()
# The launcher knows better why a rank was lost than Spark does, and says so within seconds.
_LAUNCHER_SECONDS = 3.0
# When to say that Spark has no room yet, how often to look, and how long cancelling may take.
_SAY_SECONDS, _LOOK_SECONDS, _CANCEL_SECONDS = 3.0, 0.1, 30.0
_TRACEBACK = "Traceback (most recent call last):"
_MOST_LINES = 12


class StageFailed(RuntimeError):
    """Spark gave up; its exception is the cause."""


class Plan(NamedTuple):
    """How many tasks there are, and how they begin and end."""

    tasks: int
    together: bool
    """Whether to start them all at once, in barrier mode."""
    patience: float
    """How long to let them end by themselves, in seconds; some may still wait for a slot."""


class Stage:
    """Tasks that carry the agents of a job.

    Args:
        cluster: The Spark application.
        task: What each task does.
        plan: How many there are, and how they begin and end.
        on_failure: Called from the thread with the reason if Spark gives up.
        stderr: Where to say that Spark has no room yet.
    """

    def __init__(
        self,
        cluster: Cluster,
        task: Task,
        plan: Plan,
        *,
        on_failure: Callable[[BaseException], None],
        stderr: IO[str] | None = None,
    ) -> None:
        self.label = f"horovod.spark.run.{next(_NUMBERS)}"
        self._cluster, self._task, self._plan = cluster, task, plan
        self._on_failure, self._stderr = on_failure, stderr
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = cluster.thread(self._work, self.label)

    def start(self) -> None:
        """Submits the tasks as soon as Spark can run them."""
        self._thread.start()

    def end(self) -> None:
        """Ends the tasks. Those that run end by themselves, now that their job is over."""
        self._over.set()
        self._thread.join(self._plan.patience)
        limit = time.monotonic() + _CANCEL_SECONDS
        # Spark forgets what is cancelled before it is submitted.
        while self._thread.is_alive() and time.monotonic() < limit:
            with suppress(Exception):
                self._cluster.cancel(self.label)
            self._thread.join(1)

    def reason(self, wait: float = 0) -> str | None:
        """What Spark says about its failure, in a few lines; None if it has not failed."""
        self._thread.join(wait)
        return None if self._failure is None else gist(str(self._failure))

    def room(self) -> str | None:
        """What is missing for all tasks to run; None if nothing is, or Spark does not say."""
        slots = self._cluster.slots()
        if slots is None or slots >= self._plan.tasks:
            return None
        return f"Spark could run {slots} of {self._plan.tasks} tasks now"

    def _work(self) -> None:
        try:
            if self._plan.together:
                self._wait_for_room()
            if not self._over.is_set():
                plan = self._plan
                self._cluster.run_tasks(self._task, plan.tasks, plan.together, self.label)
        except BaseException as error:
            self._failure = error
            if not self._over.wait(_LAUNCHER_SECONDS):
                failed = StageFailed(f"{_FAILED}\n{gist(str(error))}")
                failed.__cause__ = error
                self._on_failure(failed)

    def _wait_for_room(self) -> None:
        """Spark itself would look every 15 s, and fail after ten minutes."""
        started, said = time.monotonic(), False
        while (missing := self.room()) and not self._over.wait(_LOOK_SECONDS):
            if not said and time.monotonic() - started > _SAY_SECONDS:
                said = True
                print(f"[ronde] {missing}; waiting for more", file=self._stderr or sys.stderr)


def gist(text: str) -> str:
    """The exception that ended a Python task, without the stack traces of Spark around it."""
    lines = [line for line in text.strip().splitlines() if not line.startswith(_PY4J)]
    starts = [number for number, line in enumerate(lines) if _TRACEBACK in line]
    if starts:
        # The text of the exception follows the indented frames.
        frames = itertools.dropwhile(lambda line: line[:1].isspace(), lines[starts[-1] + 1 :])
        lines = list(frames)
    said = itertools.takewhile(lambda line: not _OF_JAVA.match(line), lines)
    kept = "\n".join(filter(str.strip, itertools.islice(said, _MOST_LINES)))
    return kept.removeprefix(_SPARKS) or text


_PY4J = "An error occurred while calling "
_SPARKS = ": org.apache.spark.SparkException: "
_OF_JAVA = re.compile(r"\s+at [\w.$]+|\s*SQLSTATE|(Driver|JVM) stacktrace:|\s*Caused by: ")
