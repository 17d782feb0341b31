"""Horovod on Ray: `RayExecutor` starts ranks as actors, `ElasticRayExecutor` lets them come and go.

Actors of a fixed job are ranks, which meet by a library call; in an elastic job they carry agents,
which connect to the launcher. `horovod.ray.train` is for Ray Train.
"""

from __future__ import annotations

try:
    import ray as _ray  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    raise ImportError(
        "horovod.ray needs Ray, which is not installed here; "
        "install it with `pip install 'ray[client,data,train,tune]'`",
        name=error.name,
    ) from error

from horovod.ray.elastic import ElasticRayExecutor
from horovod.ray.runner import RayExecutor
from horovod.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]
