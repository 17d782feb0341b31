"""`RayExecutor`: ranks on a Ray cluster, with Horovod's signature."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from horovod.ray.adapter import Adapter, Callback
from horovod.ray.coordinator import Coordinator
from horovod.ray.elastic_v2 import ElasticAdapter, ElasticParams
from horovod.ray.fixed import StaticAdapter, StaticParams
from horovod.ray.settings import MiniSettings

__all__ = ["Coordinator", "MiniSettings", "RayExecutor"]


class RayExecutor:
    """Run functions on ranks that Ray starts.

    A job with `num_workers` or `num_hosts` is fixed: each rank is an actor, which keeps its state
    between calls. With `min_workers` it is elastic: ranks come and go with Ray's nodes, and exist
    only during a call.

    Args:
        settings: What `create_settings` returned.
        num_workers: Number of ranks, on as few nodes as possible (default: None).
        num_hosts: Number of nodes, with the same number of ranks each (default: None).
        num_workers_per_host: Ranks on each of `num_hosts` nodes (default: 1).
        cpus_per_worker: CPUs that Ray reserves for each rank (default: 1).
        use_gpu: Whether Ray reserves GPUs (default: False).
        gpus_per_worker: GPUs for each rank (default: None, which means 1 with `use_gpu`).
        use_current_placement_group: Whether to use the placement group of the caller, such as that
            of a trial of Tune, if there is one (default: True).
        min_workers: Smallest number of ranks of an elastic job (default: None, the job is fixed).
        max_workers: Largest number of ranks of an elastic job, for which it asks Ray (default:
            None, the room that the cluster has).
        reset_limit: How often an elastic job may form a new world (default: no limit).
        cooldown_range: Shortest and longest time in seconds for which a host of an elastic job is
            left out whose rank failed (default: None, for good).
        elastic_timeout: Seconds for which an elastic job waits for enough ranks (default: 600).
        override_discovery: Whether Ray says where ranks of an elastic job run, and not the
            `discovery` of the settings (default: True).

    Raises:
        ValueError: If arguments are missing or contradict each other.

    Example:
        ```python
        from horovod.ray import RayExecutor


        def train(scale):
            import horovod.torch as hvd

            hvd.init()
            return scale * hvd.rank()


        if __name__ == "__main__":
            executor = RayExecutor(RayExecutor.create_settings(), num_workers=2)
            executor.start()
            print(executor.run(train, args=[10]))  # [0, 10]
            executor.shutdown()
        ```
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: int = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: int = 100,
        nics: Collection[str] | None = None,
    ) -> MiniSettings:
        """Make settings.

        Args:
            timeout_s: Seconds that workers may take to start, on top of `placement_group_timeout_s`
                (default: 30).
            ssh_identity_file: Accepted for compatibility with Horovod; nothing uses ssh (default:
                None).
            ssh_str: The same; it is never written to a file (default: None).
            placement_group_timeout_s: Seconds in which Ray must place the workers (default: 100).
            nics: Network interfaces for NCCL (default: it chooses).

        Returns:
            The settings.
        """
        return MiniSettings(
            nics=nics,
            ssh_identity_file=ssh_identity_file,
            timeout_s=timeout_s,
            placement_group_timeout_s=placement_group_timeout_s,
        )

    def __init__(
        self,
        settings: Any,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: tuple[int, int] | None = None,
        elastic_timeout: int = 600,
        override_discovery: bool = True,
    ) -> None:
        self.settings = settings
        if max_workers is not None and not min_workers:
            raise ValueError(
                "`max_workers` provided without any positive `min_workers`; pass `min_workers` to "
                "make the job elastic"
            )
        if min_workers is not None and num_workers is not None:
            raise ValueError(
                "Both `min_workers` and `num_workers` provided. A job is elastic, with "
                "`min_workers`, or fixed, with `num_workers`"
            )
        each: dict[str, Any] = {
            "cpus_per_worker": cpus_per_worker,
            "use_gpu": use_gpu,
            "gpus_per_worker": gpus_per_worker,
        }
        self.adapter: Adapter
        if min_workers is None:
            fixed = StaticParams(
                **each,
                num_workers=num_workers,
                num_hosts=num_hosts,
                num_workers_per_host=num_workers_per_host,
                use_current_placement_group=use_current_placement_group,
            )
            self.adapter = StaticAdapter(settings, fixed)
        else:
            elastic = ElasticParams(
                **each,
                min_workers=min_workers,
                max_workers=max_workers,
                reset_limit=reset_limit,
                cooldown_range=cooldown_range,
                elastic_timeout=elastic_timeout,
                override_discovery=override_discovery,
            )
            self.adapter = ElasticAdapter(settings, elastic)

    @property
    def workers(self) -> list[Any]:
        """The actors of a fixed job, by rank; an empty list in an elastic job."""
        return list(getattr(self.adapter, "workers", ()))

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the ranks, and on each an object of a class, which may call `hvd.init()`.

        Args:
            executable_cls: The class (default: None, there is no object).
            executable_args: Its arguments (default: none).
            executable_kwargs: Its keyword arguments (default: none).
            extra_env_vars: Variables for the environment of the ranks (default: none).

        Raises:
            TimeoutError: If Ray did not place or start the ranks in time.
            ValueError: If the current placement group is too small.
            RuntimeError: If a rank failed, as in `run`.
        """
        self.adapter.start(executable_cls, executable_args, executable_kwargs, extra_env_vars)

    def execute(
        self, fn: Callable[[Any], Any], callbacks: Sequence[Callback] | None = None
    ) -> list[Any]:
        """Call a function on every rank with the object that `start` made there.

        Args:
            fn: The function.
            callbacks: Called here with every value that ranks pass to `ray_logger.log` (default:
                none).

        Returns:
            The results, by rank.

        Raises:
            RuntimeError: If a rank failed, as in `run`.
        """
        return self.adapter.execute(fn, callbacks)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> list[Any]:
        """Call a function on every rank.

        Args:
            fn: The function; it calls `hvd.init()` itself.
            args: Its arguments (default: none).
            kwargs: Its keyword arguments (default: none).
            callbacks: Called here with every value that ranks pass to `ray_logger.log` (default:
                none).

        Returns:
            The results, by rank.

        Raises:
            RuntimeError: If a rank died or raised an exception; the text says which, and where. If
                it raised one, the error is also of that exception's class.
        """
        return self.adapter.run(fn, args, kwargs, callbacks)

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a function on every rank without waiting; not in an elastic job.

        Args:
            fn: The function.
            args: Its arguments (default: none).
            kwargs: Its keyword arguments (default: none).

        Returns:
            References to the results, by rank, for `ray.get`.

        Raises:
            NotImplementedError: If the job is elastic.
        """
        return self.adapter.run_remote(fn, args, kwargs)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Call a function on rank 0 with the object that `start` made there.

        Args:
            fn: The function.

        Returns:
            Its result.

        Raises:
            NotImplementedError: If the job is elastic.
            RuntimeError: If it failed, as in `run`.
        """
        return self.adapter.execute_single(fn)

    def shutdown(self) -> None:
        """End the ranks, and give back what was reserved for them."""
        self.adapter.shutdown()
