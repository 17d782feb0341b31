"""Where the workers of a fixed job run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from horovod.ray.adapter import BaseParams
from horovod.ray.nodes import fits, listed, shortage
from horovod.ray.worker import BaseHorovodWorker

__all__ = ["BaseStrategy", "ColocatedStrategy", "PGStrategy", "create_placement_group"]


def create_placement_group(
    resources_per_bundle: Mapping[str, float],
    num_bundles: int,
    pg_timeout: float,
    pg_strategy: str,
) -> tuple[Any, list[dict[str, float]]]:
    """Reserve equal bundles of resources.

    If the cluster is too small at the moment it says so at once, and waits, because it may grow.

    Args:
        resources_per_bundle: What each bundle reserves.
        num_bundles: Number of bundles.
        pg_timeout: How long to wait for Ray, in seconds.
        pg_strategy: `PACK`, `SPREAD`, `STRICT_PACK` or `STRICT_SPREAD`.

    Returns:
        The placement group and its bundles.

    Raises:
        TimeoutError: If Ray has not placed it in time.
    """
    bundles = [dict(resources_per_bundle) for _ in range(num_bundles)]
    lacks = shortage(resources_per_bundle, num_bundles, spread=pg_strategy == "STRICT_SPREAD")
    if lacks:
        hint = f"waiting up to {pg_timeout:g} s for it to grow"
        print(f"warning: {lacks}; {hint}", file=sys.stderr, flush=True)
    group = placement_group(bundles, strategy=pg_strategy)
    if not group.wait(pg_timeout):
        remove_placement_group(group)
        raise TimeoutError(
            "Placement group creation timed out. Make sure your cluster has enough resources, or "
            f"use an autoscaling cluster. Requested: {num_bundles} bundles of "
            f"{listed(resources_per_bundle)} ({pg_strategy}). Available: "
            f"{ray.available_resources()}. {lacks or 'Other jobs may use the resources.'}"
        )
    return group, bundles


class BaseStrategy:
    """How workers are placed.

    Args:
        params: What each worker needs.
        settings: Settings with `placement_group_timeout_s` (default: None, which means 100).
    """

    def __init__(self, params: BaseParams, settings: Any = None) -> None:
        self.params = params
        self.placement_group: Any = None
        self._is_ours = False
        self._limit = getattr(settings, "placement_group_timeout_s", 100)

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        raise NotImplementedError

    def create_workers(self) -> list[Any]:
        """Place the workers, and start an actor for each.

        Returns:
            The actors.
        """
        raise NotImplementedError

    @staticmethod
    def get_node_workers(workers: Sequence[Any]) -> list[Any]:
        """Choose one worker of each node.

        Args:
            workers: The actors.

        Returns:
            The first actor of each node.
        """
        nodes = ray.get([worker.node_id.remote() for worker in workers])
        return list(dict(reversed([*zip(nodes, workers)])).values())

    def shutdown(self) -> None:
        """Give back what was reserved; a placement group of the program is left alone."""
        if self._is_ours:
            remove_placement_group(self.placement_group)
        self.placement_group, self._is_ours = None, False

    def _reserve(self, bundle: Mapping[str, float], count: int, strategy: str) -> None:
        self.placement_group, _ = create_placement_group(bundle, count, self._limit, strategy)
        self._is_ours = True

    def _worker(self, bundle_index: int) -> Any:
        where = PlacementGroupSchedulingStrategy(self.placement_group, bundle_index)
        options = {**self.params.options(), "scheduling_strategy": where}
        return ray.remote(BaseHorovodWorker).options(**options).remote()


class ColocatedStrategy(BaseStrategy):
    """The same number of workers on each of several nodes.

    Args:
        params: What each worker needs.
        num_hosts: Number of nodes.
        num_workers_per_host: Number of workers on each.
        settings: Settings with `placement_group_timeout_s` (default: None, which means 100).
    """

    def __init__(
        self, params: BaseParams, num_hosts: int, num_workers_per_host: int, settings: Any = None
    ) -> None:
        super().__init__(params, settings)
        self.num_hosts, self.num_workers_per_host = num_hosts, num_workers_per_host

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return self.num_hosts * self.num_workers_per_host

    def create_workers(self) -> list[Any]:
        """Reserve a bundle on each node, and start the actors in it.

        Returns:
            The actors, node by node.
        """
        bundle = self.params.resources(self.num_workers_per_host)
        self._reserve(bundle, self.num_hosts, "STRICT_SPREAD")
        return [
            self._worker(host)
            for host in range(self.num_hosts)
            for _ in range(self.num_workers_per_host)
        ]


class PGStrategy(BaseStrategy):
    """Workers on as few nodes as possible, or in a placement group that exists.

    Args:
        params: What each worker needs.
        num_workers: Number of workers.
        placement_group: The placement group to use (default: None, reserve one).
        settings: Settings with `placement_group_timeout_s` (default: None, which means 100).
    """

    def __init__(
        self,
        params: BaseParams,
        num_workers: int,
        placement_group: Any = None,
        settings: Any = None,
    ) -> None:
        super().__init__(params, settings)
        self._count = num_workers
        self.placement_group = placement_group

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return self._count

    def create_workers(self) -> list[Any]:
        """Reserve a bundle for each worker, if there is no placement group, and start the actors.

        Returns:
            The actors.

        Raises:
            ValueError: If the placement group is too small for them.
        """
        needed = self.params.resources()
        if self.placement_group is None:
            self._reserve(needed, self._count, "PACK")
            return [self._worker(index) for index in range(self._count)]
        bundles = self.placement_group.bundle_specs
        room = sum(fits(bundle, needed) for bundle in bundles)
        if room < self._count:
            raise ValueError(
                f"the current placement group has room for {room} of {self._count} workers that "
                f"need {listed(needed)}: its bundles are {bundles}. Make it larger, or pass "
                "use_current_placement_group=False"
            )
        return [self._worker(-1) for _ in range(self._count)]
