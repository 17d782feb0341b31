"""Why a job on Spark failed: in the words of the launcher, of Spark, or of both."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

from horovod.runner.agents import AgentJob
from horovod.spark.stage import Stage

# How long Spark may take to notice what the launcher has noticed, and the launcher to give up.
_SPARK_SECONDS, _LAUNCHER_SECONDS = 3.0, 1.0
# Ranks start early in the events.
_STARTED, _READ_BYTES = b'"event":"worker_started"', 1 << 20
_MORE_ROOM = (
    "ask for fewer ranks, give the application more cores, or wait longer with start_timeout"
)
_LOOK_AT_TASKS = (
    "see in Spark's UI whether the tasks run, and on their executors why they cannot connect"
)


class NotStarted(RuntimeError):
    """Spark did not start enough tasks in time."""


class Failures:
    """Explains the failure of one job, and ends it if no rank was started in time.

    Args:
        start_timeout: How long Spark may take to start the tasks, in seconds.
    """

    def __init__(self, start_timeout: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ronde-spark-")
        self.event_log = str(Path(self._folder.name, "events.jsonl"))
        """The file to which the launcher is to write the events of the job."""
        self._start_timeout, self._began = start_timeout, time.monotonic()
        self._events: IO[bytes] | None = None
        self._timer: threading.Timer | None = None

    def watch(self, job: AgentJob, stage: Stage) -> None:
        """Cancels the job, which has begun, if no rank is started in time; in elastic jobs the
        launcher waits for `elastic_timeout` instead."""
        # The launcher has opened the file before it invited agents. Without a name, nothing is left
        # of it if this process is killed.
        self._events = open(self.event_log, "rb")  # noqa: SIM115, it lives as long as this
        self._folder.cleanup()

        def give_up() -> None:
            if not self._has_ranks():
                job.cancel(self._timed_out(f"no rank after {self._start_timeout} s", stage))

        self._timer = threading.Timer(self._start_timeout + _LAUNCHER_SECONDS, give_up)
        self._timer.daemon = True
        self._timer.start()

    def explained(self, error: RuntimeError, stage: Stage) -> RuntimeError:
        """A failure that is no exception of a rank, with what Spark knows about it."""
        late = time.monotonic() - self._began >= self._start_timeout
        if late and not self._has_ranks():
            return self._timed_out(str(error), stage)
        spark = stage.reason(_SPARK_SECONDS)
        return RuntimeError(f"{error}\nSpark says: {spark}" if spark else str(error))

    def __enter__(self) -> Failures:
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._events is not None:
            self._events.close()
        self._folder.cleanup()

    def _has_ranks(self) -> bool:
        if self._events is None or self._events.closed:
            return False
        return _STARTED in os.pread(self._events.fileno(), _READ_BYTES, 0)

    def _timed_out(self, said: str, stage: Stage) -> NotStarted:
        room = stage.room()
        facts = [said, *filter(None, [stage.reason() or room])]
        advice = _MORE_ROOM if room else _LOOK_AT_TASKS
        headline = "Timed out waiting for Spark tasks to start."
        return NotStarted("\n".join([headline, *facts, f"hint: {advice}"]))
