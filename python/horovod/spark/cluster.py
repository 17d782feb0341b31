"""The Spark application of this process, through a SparkContext or Spark Connect.

Everything that differs between the two is here, and every call into parts of Spark that are not
public, with what to do if they are missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

Task = Callable[[Iterator[Any]], Iterator[Any]]

_NO_SESSION = "Could not find an active SparkContext, are you running in a PySpark session?"


class Cluster:
    """A Spark session, and what jobs need to know and do about it."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._context = _context(session)

    @classmethod
    def active(cls) -> Cluster:
        """That of the active session; RuntimeError with Horovod's text if there is none."""
        import pyspark
        from pyspark.sql import SparkSession

        with suppress(Exception):
            return cls(SparkSession.active())
        # A client for Spark Connect alone has no contexts.
        contexts = getattr(pyspark, "SparkContext", None)
        if getattr(contexts, "_active_spark_context", None) is None:
            raise RuntimeError(_NO_SESSION)
        return cls(SparkSession.builder.getOrCreate())

    def setting(self, key: str, default: str = "") -> str:
        """A setting of the application; the default, too, if Spark does not show it."""
        with suppress(Exception):
            return str(self._session.conf.get(key, default))
        return default

    def version(self) -> str:
        """Spark's version."""
        return str(self._session.version)

    def parallelism(self) -> int:
        """How many partitions Spark makes by default."""
        if self._context is not None:
            return int(self._context.defaultParallelism)
        rows = self._session.range(0, 1 << 16).selectExpr("spark_partition_id() AS partition")
        return int(rows.distinct().count())

    def slots(self) -> int | None:
        """How many tasks could run at once now; None if Spark does not say."""
        with suppress(Exception):
            scheduler = self._context._jsc.sc()
            profile = scheduler.resourceProfileManager().resourceProfileFromId(0)
            return int(scheduler.maxNumConcurrentTasks(profile))
        return None

    def thread(self, work: Callable[[], None], name: str) -> threading.Thread:
        """A thread with this thread's scheduler pool, tags and the like."""
        from pyspark import InheritableThread

        try:
            thread = InheritableThread(work, session=self._session)
        except TypeError:
            # Before Spark 4.
            thread = InheritableThread(work)
        thread.name, thread.daemon = name, True
        return thread

    def run_tasks(self, task: Task, count: int, together: bool, label: str) -> None:
        """Runs a task `count` times and waits; all at once in barrier mode if `together`.

        The thread that calls it belongs to these tasks from then on.
        """
        if self._context is not None:
            self._context.setJobGroup(label, label, interruptOnCancel=False)
        else:
            self._session.addTag(label)
        rows = self._session.range(0, count, 1, count)
        rows.mapInArrow(task, "nothing bigint", barrier=together).collect()

    def cancel(self, label: str) -> None:
        """Cancels the tasks with this label, if any run or wait."""
        if self._context is not None:
            self._context.cancelJobGroup(label)
        else:
            self._session.interruptTag(label)


def _context(session: Any) -> Any:
    """Its SparkContext; None with Spark Connect."""
    try:
        return session.sparkContext
    except Exception:
        return None
