"""The results of all ranks, or the failure that explains the others.

When a rank fails, the others raise `HorovodInternalError` at once, if they communicate; they are
given a little time, so that the first cause is known, and never waited for beyond that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from queue import Empty
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.queue import Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from horovod.ray.adapter import Callback
from horovod.runner.failure import Report, rank_failure, read_report

GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.1
_CONSEQUENCES = ("HorovodInternalError", "HostsUpdatedInterrupt")
_NOT_JOINED = "Horovod initialization failed"


class Failure(NamedTuple):
    """How a rank failed: it raised an exception, or its actor died."""

    rank: int
    report: Report | None
    error: RayError | None

    @property
    def is_consequence(self) -> bool:
        """Whether it only says that another rank failed."""
        return self.report is not None and (
            self.report.name in _CONSEQUENCES or self.report.message.startswith(_NOT_JOINED)
        )


def gather(
    refs: Sequence[Any], who: Sequence[str], poll: Callable[[], None] | None = None
) -> list[Any]:
    """Waits for the answers of all ranks, given as references by rank.

    Args:
        refs: The references.
        who: The ranks in words.
        poll: Called again and again while it waits.

    Raises:
        RuntimeError: If a rank failed; also of the class of its exception.
    """
    rank_of = {ref: rank for rank, ref in enumerate(refs)}
    values: dict[int, Any] = {}
    failures: list[Failure] = []
    end: float | None = None
    pending = list(refs)
    while pending and (end is None or time.monotonic() < end):
        limit = _POLL_SECONDS if poll or end else None
        ready, pending = ray.wait(pending, timeout=limit)
        for ref in ready:
            rank = rank_of[ref]
            failure = _take(rank, ref, values)
            failures += [failure] if failure else []
        if failures and end is None:
            end = time.monotonic() + GRACE_SECONDS
        if poll:
            poll()
    if failures:
        raise _explained(failures, who, [rank_of[ref] for ref in pending])
    return [values[rank] for rank in range(len(refs))]


def log_queue() -> Queue:
    """A queue for `ray_logger`, on the caller's node: other nodes may die."""
    return Queue(actor_options={"num_cpus": 0, "scheduling_strategy": on_this_node()})


def on_this_node() -> NodeAffinitySchedulingStrategy:
    """Has an actor run on the caller's node; through Ray Client, on that of the server."""
    node = ray.get_runtime_context().get_node_id()
    return NodeAffinitySchedulingStrategy(node, soft=True)


def drain(queue: Any, callbacks: Sequence[Callback]) -> None:
    """Passes everything that ranks have logged on to the callbacks."""
    while True:
        try:
            logged = queue.get_nowait()
        except Empty:
            return
        for callback in callbacks:
            callback(logged)


def _take(rank: int, ref: Any, values: dict[int, Any]) -> Failure | None:
    try:
        answer = ray.get(ref)
    except RayError as error:
        return Failure(rank, None, error)
    if answer.report is not None:
        return Failure(rank, read_report(answer.report), None)
    values[rank] = answer.value
    return None


def _explained(
    failures: Sequence[Failure], who: Sequence[str], waiting: Sequence[int]
) -> RuntimeError:
    causes = [failure for failure in failures if not failure.is_consequence]
    rank, report, error = (causes or failures)[0]
    others = f"; still running: {', '.join(who[each] for each in waiting)}" if waiting else ""
    if report is not None:
        return rank_failure(f"{who[rank]} raised an exception{others}", report)
    how = "died" if isinstance(error, RayActorError) else "failed"
    failed = RuntimeError(f"{who[rank]} {how}{others}: {error}")
    failed.__cause__ = error
    return failed
