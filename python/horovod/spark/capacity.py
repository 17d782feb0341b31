"""How many tasks a Spark application can run at once, as far as its settings say.

Pure: settings come in as a function. What Spark would do about a job that is too large (wait for
ten minutes, or forever) is thus said before the job starts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import NamedTuple

Setting = Callable[[str, str], str]

_LOCAL = re.compile(r"local(?:\[(?P<threads>\*|\d+)(?:,\s*\d+)?\])?$")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]$")


class Limit(NamedTuple):
    """The most tasks that can ever run at once, and the settings that say so."""

    tasks: int
    because: str

    def refuse(self, wanted: int) -> None:
        """Raises ValueError if more tasks are wanted."""
        if wanted > self.tasks:
            raise ValueError(
                f"{wanted} ranks need {wanted} tasks of Spark at once, but this application can "
                f"never run more than {self.tasks}: {self.because}; ask for fewer ranks, or start "
                "the application with more cores"
            )


def is_dynamic(setting: Setting) -> bool:
    """Whether Spark adds and removes executors while the application runs."""
    local = _LOCAL.match(setting("spark.master", "")) is not None
    return not local and setting("spark.dynamicAllocation.enabled", "false").lower() == "true"


def limit(setting: Setting) -> Limit | None:
    """The limit that the settings imply; None if the cluster may give any number of tasks."""
    master = setting("spark.master", "")
    per_task = max(1, _number(setting("spark.task.cpus", "1")) or 1)
    each = f"spark.task.cpus is {per_task}"
    local, local_cluster = _LOCAL.match(master), _LOCAL_CLUSTER.match(master)
    if local is not None:
        threads = local["threads"] or "1"
        cores = (os.cpu_count() or 1) if threads == "*" else int(threads)
        return Limit(cores // per_task, f"the master is `{master}` and {each}")
    if local_cluster is not None:
        workers, cores = int(local_cluster[1]), int(local_cluster[2])
        return Limit(workers * (cores // per_task), f"the master is `{master}` and {each}")
    if master.startswith("spark://"):
        most = _number(setting("spark.cores.max", ""))
        because = f"spark.cores.max is {most} and {each}"
        return None if most is None else Limit(most // per_task, because)
    if master == "yarn" or master.startswith("k8s://"):
        return _of_executors(setting, per_task, each)
    return None


def _of_executors(setting: Setting, per_task: int, each: str) -> Limit | None:
    """Where a number of executors is asked for."""
    key, default = "spark.executor.instances", "2"
    if is_dynamic(setting):
        key, default = "spark.dynamicAllocation.maxExecutors", ""
    executors = _number(setting(key, default))
    cores = _number(setting("spark.executor.cores", "1"))
    if executors is None or cores is None:
        return None
    because = f"{key} is {executors}, spark.executor.cores is {cores} and {each}"
    return Limit(executors * (cores // per_task), because)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
