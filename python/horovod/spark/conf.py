"""Pairs for `SparkConf.setAll`: how often Spark restarts a task, and where.

Spark 3.1 renamed `spark.blacklist` to `spark.excludeOnFailure`, and Spark 4.1 stopped reading the
old names. Horovod's constants keep their names here and have the keys of today; for a program
that spells the old keys itself, `current` translates them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

_OLD = "spark.blacklist."
_NEW = "spark.excludeOnFailure."

SPARK_CONF_MAX_INT = "2147483647"
SPARK_CONF_MAX_INT_MINUS_ONE = "2147483646"

_EXECUTOR_IN_STAGE = _NEW + "stage.maxFailedTasksPerExecutor"
_NODE_IN_STAGE = _NEW + "stage.maxFailedExecutorsPerNode"
_EXECUTOR_FOR_TASK = _NEW + "task.maxTaskAttemptsPerExecutor"
_NODE_FOR_TASK = _NEW + "task.maxTaskAttemptsPerNode"
_EXECUTOR_IN_APP = _NEW + "application.maxFailedTasksPerExecutor"
_NODE_IN_APP = _NEW + "application.maxFailedExecutorsPerNode"

SPARK_CONF_ALWAYS_RESTART_FAILED_TASK = ("spark.task.maxFailures", SPARK_CONF_MAX_INT)

SPARK_CONF_BLACKLIST_DISABLED = (_NEW + "enabled", "false")
SPARK_CONF_BLACKLIST_ENABLED = (_NEW + "enabled", "true")

SPARK_CONF_REUSE_FAILED_EXECUTOR = (_EXECUTOR_IN_STAGE, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR = (_EXECUTOR_IN_STAGE, "1")
SPARK_CONF_REUSE_FAILING_NODE = (_NODE_IN_STAGE, SPARK_CONF_MAX_INT_MINUS_ONE)
SPARK_CONF_DONT_REUSE_FAILING_NODE = (_NODE_IN_STAGE, "1")

SPARK_CONF_REUSE_EXECUTOR_ALWAYS_FOR_SAME_TASK = (_EXECUTOR_FOR_TASK, SPARK_CONF_MAX_INT)
SPARK_CONF_REUSE_EXECUTOR_ONCE_FOR_SAME_TASK = (_EXECUTOR_FOR_TASK, "2")
SPARK_CONF_DONT_REUSE_EXECUTOR_FOR_SAME_TASK = (_EXECUTOR_FOR_TASK, "1")
SPARK_CONF_REUSE_NODE_ALWAYS_FOR_SAME_TASK = (_NODE_FOR_TASK, SPARK_CONF_MAX_INT_MINUS_ONE)
SPARK_CONF_REUSE_NODE_ONCE_FOR_SAME_TASK = (_NODE_FOR_TASK, "2")
SPARK_CONF_DONT_REUSE_NODE_FOR_SAME_TASK = (_NODE_FOR_TASK, "1")

SPARK_CONF_REUSE_FAILED_EXECUTOR_IN_APP = (_EXECUTOR_IN_APP, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR_IN_APP = (_EXECUTOR_IN_APP, "1")
SPARK_CONF_REUSE_FAILING_NODE_IN_APP = (_NODE_IN_APP, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILING_NODE_IN_APP = (_NODE_IN_APP, "1")

SPARK_CONF_DEFAULT_VALUES = {
    "spark.task.maxFailures": "4",
    _NEW + "enabled": "false",
    _EXECUTOR_IN_STAGE: "2",
    _NODE_IN_STAGE: "2",
    _EXECUTOR_FOR_TASK: "1",
    _NODE_FOR_TASK: "2",
    _EXECUTOR_IN_APP: "2",
    _NODE_IN_APP: "2",
}


def current(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Settings with today's keys in place of `spark.blacklist...`, for `SparkConf.setAll`.

    Args:
        pairs: Keys and values, old or new.

    Returns:
        The same settings; other keys stay as they are.
    """
    return [
        (_NEW + key[len(_OLD) :] if key.startswith(_OLD) else key, value) for key, value in pairs
    ]


def ignored(setting: Callable[[str, str], str], version: str) -> list[str]:
    """Old keys that an application sets although its version of Spark no longer reads them.

    Args:
        setting: Function that returns a setting by its key, or else the default.
        version: Spark's version.

    Returns:
        The keys.
    """
    if tuple(int(part) for part in version.split(".")[:2]) < (4, 1):
        return []
    old = [_OLD + key[len(_NEW) :] for key in SPARK_CONF_DEFAULT_VALUES if key.startswith(_NEW)]
    return [key for key in old if setting(key, "")]
