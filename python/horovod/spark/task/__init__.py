"""What a rank or a task can ask about the Spark task that it runs in."""

from __future__ import annotations

import sys

from horovod.common import environment

__all__ = ["get_available_devices"]


def get_available_devices() -> list[str]:
    """The addresses of the GPUs that Spark assigned to the task of this process.

    A rank sees only these: `CUDA_VISIBLE_DEVICES` names them, and the first is its device 0. Under
    `HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX=1` it sees all GPUs of its host.

    Returns:
        Addresses as Spark names them, such as `["2"]`; empty if Spark assigned none.
    """
    assigned = environment.gpus_of_spark()
    return assigned_gpus() if assigned is None else assigned


def assigned_gpus() -> list[str]:
    """The same in the task itself; empty in a process that is no task of Spark."""
    pyspark = sys.modules.get("pyspark")
    context = None if pyspark is None else pyspark.TaskContext.get()
    gpus = None if context is None else context.resources().get("gpu")
    return [] if gpus is None else list(gpus.addresses)
