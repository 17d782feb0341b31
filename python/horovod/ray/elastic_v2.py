"""An elastic job on Ray: ranks are children of agents, and actors carry these to the nodes.

Through Ray Client the launcher cannot run in this process, because the cluster need not reach it;
then it runs in an actor.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayTaskError

from horovod.ray.adapter import Adapter, BaseParams, Callback
from horovod.ray.carrier import Load, Site
from horovod.ray.discovery import RayHostDiscovery
from horovod.ray.discovery import TestDiscovery as TestDiscovery
from horovod.ray.fleet import Fleet, Wanted
from horovod.ray.nodes import alive, shortage
from horovod.ray.outcome import drain, log_queue, on_this_node
from horovod.runner.agents import AgentJob

_TURN_SECONDS = 0.2
# For what ranks logged just before they ended.
_LAST_WORDS_SECONDS = 5.0


@dataclass
class ElasticParams(BaseParams):
    """The workers of an elastic job.

    With `max_workers`, the job asks Ray for so many, and an autoscaler adds nodes for them; without
    it, the job uses the nodes that there are.
    """

    min_workers: int = 1
    max_workers: int | None = None
    reset_limit: int | None = None
    cooldown_range: tuple[int, int] | None = None
    elastic_timeout: int = 600
    override_discovery: bool = True

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ValueError: If they contradict each other.
        """
        super().__post_init__()
        if self.min_workers < 1:
            raise ValueError(f"min_workers must be >= 1, and is {self.min_workers}")
        if self.max_workers is not None and self.max_workers < self.min_workers:
            raise ValueError(
                f"max_workers is {self.max_workers}, less than min_workers, {self.min_workers}"
            )

    def wanted(self, settings: Any) -> Wanted:
        """How many ranks the job wants, whenever it is asked."""
        given = getattr(settings, "discovery", None)
        if given is not None and not self.override_discovery:
            found: Wanted = given.find_available_hosts_and_slots
            return found
        if self.max_workers is not None:
            most = self.max_workers
            return lambda: most
        nodes = RayHostDiscovery(self.use_gpu, self.cpus_per_worker, self.gpus_per_worker)
        return lambda: max(self.min_workers, sum(nodes.find_available_hosts_and_slots().values()))


class ElasticAdapter(Adapter):
    """An elastic job.

    Args:
        settings: The settings of the job; a `discovery` in them counts if the parameters say so.
        params: Its workers.
    """

    def __init__(self, settings: Any, params: ElasticParams) -> None:
        self.settings, self.params = settings, params
        self._prepared: tuple[Any, dict[str, str]] | None = None

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Keeps what each rank makes when it starts: ranks start when a function runs."""
        made = (executable_cls, tuple(executable_args or ()), dict(executable_kwargs or {}))
        env = {name: str(value) for name, value in (extra_env_vars or {}).items()}
        self._prepared = made, env

    def execute(
        self, fn: Callable[[Any], Any], callbacks: Sequence[Callback] | None = None
    ) -> list[Any]:
        """Runs the job; the function gets the object that each rank made."""
        if self._prepared is None:
            raise RuntimeError("the job has not been started; call start() first")
        (cls, args, kwargs), env = self._prepared

        def on_a_rank() -> Any:
            return fn(None if cls is None else cls(*args, **kwargs))

        queue = log_queue() if callbacks else None
        chosen = list(callbacks or ())

        def turn() -> None:
            if queue is not None:
                drain(queue, chosen)

        try:
            values = _run(ElasticRun(self.settings, self.params, env, queue), on_a_rank, turn)
            turn()
        finally:
            if queue is not None:
                queue.shutdown()
        return values

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> list[Any]:
        """Runs the job, with these arguments."""
        chosen, named = tuple(args or ()), dict(kwargs or {})
        return self.execute(lambda _: fn(*chosen, **named), callbacks)

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Raises: which ranks there will be is not known."""
        raise NotImplementedError(
            "run_remote does not work in an elastic job, whose ranks come and go; use run()"
        )

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Raises: there are no ranks between two calls."""
        raise NotImplementedError(
            "execute_single does not work in an elastic job, whose ranks exist only during a call; "
            "use execute() and return a value on rank 0 only"
        )

    def shutdown(self) -> None:
        """Forgets what `start` was given; nothing runs between two calls."""
        self._prepared = None


@dataclass
class ElasticRun:
    """A job and its actors, in the process that has the launcher."""

    settings: Any
    params: ElasticParams
    env: dict[str, str]
    queue: Any

    def run(self, func: Callable[[], Any], turn: Callable[[], None] = lambda: None) -> list[Any]:
        """Runs the function; calls `turn` again and again in this thread."""
        params, settings = self.params, self.settings
        lacks = shortage(params.resources(), params.min_workers)
        if lacks:
            wait = f"waiting up to {params.elastic_timeout} s for it to grow"
            print(f"warning: {lacks}; {wait}", file=sys.stderr, flush=True)
        job = AgentJob(
            func,
            agents=params.min_workers,
            min_num_proc=params.min_workers,
            max_num_proc=params.max_workers,
            reset_limit=params.reset_limit,
            cooldown_range=params.cooldown_range,
            elastic_timeout=params.elastic_timeout,
            start_timeout=params.elastic_timeout,
            nics=getattr(settings, "nics", None),
            verbose=max(0, (getattr(settings, "verbose", None) or 0) - 1) or None,
        )
        invitation = job.start()

        def load(number: int, site: Site) -> Load:
            env = {**gpus_of(site.node_id, params.use_gpu), **self.env}
            return Load(invitation, number, env, params.elastic_timeout, self.queue)

        fleet = Fleet(params.options(), params.wanted(settings), load)
        return _attend(job, fleet, turn)


def _run(run: ElasticRun, func: Callable[[], Any], turn: Callable[[], None]) -> list[Any]:
    if not ray.util.client.ray.is_connected():
        return run.run(func, turn)
    host = ray.remote(ElasticRun).options(num_cpus=0, scheduling_strategy=on_this_node())
    actor: Any = host.remote(run.settings, run.params, run.env, run.queue)
    result = actor.run.remote(func)
    try:
        while not ray.wait([result], timeout=_TURN_SECONDS)[0]:
            turn()
        values: list[Any] = ray.get(result)
    except RayTaskError as error:
        raise getattr(error, "cause", error) from None
    finally:
        ray.kill(actor)
    return values


def _attend(job: AgentJob, fleet: Fleet, turn: Callable[[], None]) -> list[Any]:
    """Waits for the job in a thread; callbacks and Ray belong to this one."""
    outcome: list[Any] = []

    def wait() -> None:
        try:
            outcome.append(job.wait(all_results=True))
        except BaseException as error:
            outcome.append(error)

    waiting = threading.Thread(target=wait, name="ronde-ray-job")
    waiting.start()
    try:
        while waiting.is_alive():
            fleet.step(_TURN_SECONDS)
            turn()
    except BaseException as error:
        job.cancel(error)
        raise
    finally:
        waiting.join()
        fleet.stop(_LAST_WORDS_SECONDS)
    (found,) = outcome
    if isinstance(found, BaseException):
        raise found
    values: list[Any] = found
    return values


def gpus_of(node_id: str, use_gpu: bool) -> dict[str, str]:
    """The variable with which ranks see all GPUs of a node, in the order of their local ranks."""
    if not use_gpu:
        return {}
    found = (node.resources.get("GPU", 0) for node in alive() if node.node_id == node_id)
    count = int(next(found, 0))
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(count)))} if count else {}
