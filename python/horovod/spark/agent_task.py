"""What a Spark task does: it carries one agent of a job, with one slot.

The driver makes the task with `agent_task`; `offer_slot` runs on the executor. The key of the job
is part of the task, so it travels as Spark's own tasks do and is in no argument list and no log.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import horovod
from horovod.common import environment
from horovod.runner.agents import Agent, Invitation
from horovod.spark.cluster import Task
from horovod.spark.task import assigned_gpus

# The launcher listens before the first task exists.
_CONNECT_SECONDS = 60.0


def agent_task(invitation: Invitation, env: Mapping[str, str]) -> Task:
    """The task: it needs nothing of this package until it runs, so that it can say what is missing.

    Args:
        invitation: The invitation to the job.
        env: Further variables for the ranks.
    """
    wanted, more = horovod.__version__, dict(env)
    addresses, key = tuple(invitation.addresses), invitation.key

    # Pickled by value, because it is local to a function.
    def task(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            pass
        import platform
        import sys

        where = f"{sys.executable} on host {platform.node()}"
        try:
            import horovod
        except ImportError as error:
            raise RuntimeError(f"Ronde is not installed for {where}; install {wanted}") from error
        found = getattr(horovod, "__version__", "unknown")
        if found != wanted:
            raise RuntimeError(
                f"Ronde is {found} for {where}, and {wanted} on the driver; "
                "install the same version on both"
            )
        from horovod.spark.agent_task import offer_slot

        offer_slot(addresses, key, more)
        yield from ()

    return task


def offer_slot(addresses: tuple[str, ...], key: str, env: Mapping[str, str]) -> None:
    """Offers one slot to the job and returns when the job is over."""
    agent = Agent(
        Invitation(addresses, key),
        name=_name(),
        shared_host=_machine(),
        env={**_paths(), **_gpus(env), **env},
        timeout=_CONNECT_SECONDS,
    )
    with agent:
        agent.wait()


def _name() -> str:
    """The host, and the task by its number in Spark's UI."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return platform.node()
    again = f".{context.attemptNumber()}" if context.attemptNumber() else ""
    return f"{platform.node()}-task-{context.partitionId()}{again}"


def _machine() -> str:
    """What tasks on one machine have in common: pods share a kernel, but not its host name."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    number = boot.read_text().strip() if boot.exists() else ""
    return f"{platform.node()}-{number}"


def _gpus(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that limit a rank to the GPUs that Spark assigned to its task."""
    gpus = assigned_gpus()
    return environment.for_gpus_of_spark(gpus, env) if gpus else {}


def _paths() -> dict[str, str]:
    """PYTHONPATH with the files that the application has sent to its executors."""
    from pyspark import SparkFiles

    sent = os.path.realpath(SparkFiles.getRootDirectory())
    added = [path for path in sys.path if os.path.realpath(path).startswith(sent)]
    return environment.with_python_path(added)
