"""`ElasticRayExecutor`, Horovod's older interface to elastic jobs on Ray."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.ray.adapter import Callback
from horovod.ray.discovery import RayHostDiscovery, TestDiscovery
from horovod.ray.elastic_v2 import ElasticAdapter, ElasticParams
from horovod.ray.settings import MiniSettings
from horovod.runner.elastic.discovery import HostDiscovery

__all__ = ["ElasticRayExecutor", "ElasticRaySettings", "RayHostDiscovery", "TestDiscovery"]


@dataclass
class ElasticRaySettings(MiniSettings):
    """What `ElasticRayExecutor.create_settings` makes.

    Args:
        elastic: Always True (default: True).
        min_num_proc: Smallest number of ranks (default: 1).
        max_num_proc: Largest number of ranks (default: None, the room that the cluster has).
        reset_limit: How often a new world may form (default: no limit).
        elastic_timeout: Seconds to wait for enough slots (default: 600).
        cooldown_range: Shortest and longest time in seconds for which a host is left out whose rank
            failed (default: None, for good).
        discovery: Where ranks may run, if the executor is not to find out (default: None).
    """

    elastic: bool = True
    min_num_proc: int = 1
    max_num_proc: int | None = None
    reset_limit: int | None = None
    elastic_timeout: int = 600
    cooldown_range: tuple[int, int] | None = None
    discovery: HostDiscovery | None = None


class ElasticRayExecutor:
    """Run a function on ranks that come and go with Ray's nodes.

    Args:
        settings: What `create_settings` returned.
        use_gpu: Whether Ray reserves GPUs (default: False).
        cpus_per_slot: CPUs that Ray reserves for each rank (default: 1).
        gpus_per_slot: GPUs for each rank (default: None, which means 1 with `use_gpu`).
        env_vars: Variables for the environment of the ranks (default: none).
        override_discovery: Whether Ray says where ranks run, not the settings (default: True).

    Raises:
        ValueError: If arguments contradict each other.

    Example:
        ```python
        from horovod.ray import ElasticRayExecutor

        settings = ElasticRayExecutor.create_settings(min_num_proc=1, max_num_proc=4)
        executor = ElasticRayExecutor(settings, cpus_per_slot=2)
        ```
    """

    @staticmethod
    def create_settings(
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: int = 600,
        timeout_s: int = 30,
        ssh_identity_file: str | None = None,
        nics: Collection[str] | None = None,
        min_np: int | None = None,
        max_np: int | None = None,
        **kwargs: Any,
    ) -> ElasticRaySettings:
        """Make settings.

        Args:
            min_num_proc: Smallest number of ranks (default: 1).
            max_num_proc: Largest number of ranks, for which the job asks Ray (default: None, the
                room that the cluster has).
            reset_limit: How often a new world may form (default: no limit).
            elastic_timeout: Seconds to wait for enough slots (default: 600).
            timeout_s: Accepted for compatibility with Horovod; see `elastic_timeout` (default: 30).
            ssh_identity_file: Accepted for compatibility with Horovod; nothing uses ssh (default:
                None).
            nics: Network interfaces that ranks may use (default: all).
            min_np: Deprecated, use `min_num_proc`.
            max_np: Deprecated, use `max_num_proc`.
            **kwargs: More of `ElasticRaySettings`, such as `cooldown_range` or `discovery`.

        Returns:
            The settings.
        """
        for old, given in (("min_np", min_np), ("max_np", max_np)):
            if given is not None:
                text = f"{old} is deprecated, use {old[:3]}_num_proc instead"
                warnings.warn(text, DeprecationWarning, stacklevel=2)
        return ElasticRaySettings(
            nics=nics,
            ssh_identity_file=ssh_identity_file,
            timeout_s=timeout_s,
            min_num_proc=min_num_proc if min_np is None else min_np,
            max_num_proc=max_num_proc if max_np is None else max_np,
            reset_limit=reset_limit,
            elastic_timeout=elastic_timeout,
            **kwargs,
        )

    def __init__(
        self,
        settings: ElasticRaySettings,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: int | None = None,
        env_vars: Mapping[str, Any] | None = None,
        override_discovery: bool = True,
    ) -> None:
        self.settings = settings
        params = ElasticParams(
            cpus_per_worker=cpus_per_slot,
            use_gpu=use_gpu,
            gpus_per_worker=gpus_per_slot,
            min_workers=settings.min_num_proc,
            max_workers=settings.max_num_proc,
            reset_limit=settings.reset_limit,
            cooldown_range=settings.cooldown_range,
            elastic_timeout=settings.elastic_timeout,
            override_discovery=override_discovery,
        )
        self._adapter = ElasticAdapter(settings, params)
        self._env_vars = dict(env_vars or {})

    def start(self) -> None:
        """Prepare the job."""
        self._adapter.start(extra_env_vars=self._env_vars)

    def run(
        self, worker_fn: Callable[[], Any], callbacks: Sequence[Callback] | None = None
    ) -> list[Any]:
        """Call a function on every rank, also on those that come later.

        Args:
            worker_fn: The function; it calls `hvd.init()` itself.
            callbacks: Called here with every value that ranks pass to `ray_logger.log` (default:
                none).

        Returns:
            The results of the ranks that were there at the end, by rank.

        Raises:
            RuntimeError: If the job failed; also of the class of a rank's exception.
        """
        return self._adapter.run(worker_fn, callbacks=callbacks)
