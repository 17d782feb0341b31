"""A fixed job on Ray: each rank is an actor, and the ranks meet by a library call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import get_current_placement_group

from horovod.ray.adapter import Adapter, BaseParams, Callback
from horovod.ray.outcome import drain, gather, log_queue
from horovod.ray.places import Where, assign
from horovod.ray.strategy import BaseStrategy, ColocatedStrategy, PGStrategy
from horovod.ray.utils import detect_nics, map_blocking

# The settings that limit together how long workers may take to start.
_LIMITS = ("placement_group_timeout_s", "timeout_s")


@dataclass
class StaticParams(BaseParams):
    """A fixed number of workers: `num_workers`, or `num_workers_per_host` on `num_hosts`."""

    num_workers: int | None = None
    num_hosts: int | None = None
    num_workers_per_host: int = 1
    use_current_placement_group: bool = True

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ValueError: If they contradict each other, or there are none.
        """
        super().__post_init__()
        if self.num_workers is None and self.num_hosts is None:
            raise ValueError(
                "pass `num_workers`, `num_hosts` or, for an elastic job, `min_workers`"
            )
        if self.num_workers is not None and self.num_hosts is not None:
            raise ValueError("pass `num_workers` or `num_hosts`, not both")

    def strategy(self, settings: Any) -> BaseStrategy:
        """Where these workers run."""
        if self.num_hosts is not None:
            per_host = self.num_workers_per_host
            return ColocatedStrategy(self, self.num_hosts, per_host, settings)
        group = get_current_placement_group() if self.use_current_placement_group else None
        return PGStrategy(self, self.num_workers or 0, group, settings)


class StaticAdapter(Adapter):
    """A fixed job.

    Args:
        settings: The settings of the job.
        params: Its workers.
    """

    def __init__(self, settings: Any, params: StaticParams) -> None:
        self.settings, self.params = settings, params
        self.workers: list[Any] = []
        self.strategy: BaseStrategy | None = None
        self._who: list[str] = []

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts the actors, has them meet, and makes an object on each."""
        if self.workers:
            raise RuntimeError("the workers are running already; call shutdown() first")
        try:
            self.strategy = self.params.strategy(self.settings)
            self.workers = self.strategy.create_workers()
            self._introduce(extra_env_vars or {})
            if executable_cls is not None:
                self._call("start_executable", executable_cls, executable_args, executable_kwargs)
        except BaseException:
            self.shutdown()
            raise

    def execute(
        self, fn: Callable[[Any], Any], callbacks: Sequence[Callback] | None = None
    ) -> list[Any]:
        """Calls the function on every rank with its object; returns the results by rank."""
        return self._call("call", fn, callbacks=callbacks)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> list[Any]:
        """Calls the function on every rank; returns the results by rank."""
        return self.execute(bound(fn, args, kwargs), callbacks)

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls the function on every rank; returns references to the results."""
        call = ray.put(bound(fn, args, kwargs))
        return [worker.execute.remote(call) for worker in self._running()]

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls the function on rank 0 with its object."""
        packed = [ray.put((fn,))]
        return gather([self._running()[0].attempt.remote("call", packed)], self._who)[0]

    def shutdown(self) -> None:
        """Ends the actors."""
        for worker in self.workers:
            # They would end with their last reference, but their resources are wanted now.
            with suppress(Exception):
                ray.kill(worker)
        if self.strategy is not None:
            self.strategy.shutdown()
        self.workers, self.strategy, self._who = [], None, []

    def _running(self) -> list[Any]:
        if not self.workers:
            raise RuntimeError("no workers are running; call start() first")
        return self.workers

    def _call(
        self, method: str, *args: Any, callbacks: Sequence[Callback] | None = None
    ) -> list[Any]:
        workers = self._running()
        packed = [ray.put(args)]
        queue = log_queue() if callbacks else None
        for worker in workers if queue is not None else ():
            worker.set_queue.remote(queue)
        refs = [worker.attempt.remote(method, packed) for worker in workers]
        if queue is None:
            return gather(refs, self._who)
        chosen = list(callbacks or ())
        try:
            values = gather(refs, self._who, lambda: drain(queue, chosen))
            drain(queue, chosen)
        finally:
            for worker in workers:
                worker.set_queue.remote(None)
            queue.shutdown()
        return values

    def _introduce(self, more: Mapping[str, Any]) -> None:
        """Numbers the actors, node by node, and gives each its place."""
        limit = sum(getattr(self.settings, name, 100) for name in _LIMITS)
        refs = [worker.where.remote() for worker in self.workers]
        ready, late = ray.wait(refs, num_returns=len(refs), timeout=limit)
        found: dict[Any, Where] = dict(zip(ready, ray.get(ready)))
        if late:
            raise TimeoutError(
                f"{len(late)} of {len(refs)} workers have not started within {limit} s "
                f"({' and '.join(_LIMITS)}); `ray status` shows what uses their resources"
            )
        first = {found[ref].node_id: number for number, ref in reversed([*enumerate(refs)])}
        pairs = sorted(zip(self.workers, refs), key=lambda pair: first[found[pair[1]].node_id])
        self.workers = [worker for worker, _ in pairs]
        places = [found[ref] for _, ref in pairs]
        assignments = assign(places, detect_nics(self.settings), more)
        self._who = [f"rank {each.place.rank} ({each.place.host})" for each in assignments]
        invitation = ray.get(self.workers[0].open_meeting.remote(len(places)))
        map_blocking(
            lambda pair: pair[0].join.remote(invitation, pair[1]), zip(self.workers, assignments)
        )


def bound(
    fn: Callable[..., Any], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> Callable[[Any], Any]:
    """A function of the rank's object that calls `fn` with these arguments instead."""
    chosen, named = tuple(args or ()), dict(kwargs or {})
    return lambda _: fn(*chosen, **named)
