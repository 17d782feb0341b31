"""Elastic training: the part that all frameworks share.

A `State` holds what training needs to continue. `commit` keeps a copy of it in memory; when a rank
is lost, the others return to that copy, form the next world without restarting, and receive the
state of rank 0, which always has it. `run_fn` is that loop around the user's function. Processes
are not restarted here; that is up to the launcher.
"""

from __future__ import annotations

import functools
import queue
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from horovod import _native, raw
from horovod.common.basics import _basics
from horovod.common.departure import Departure
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.notification import (
    HostUpdateResult,
    WorkerNotificationManager,
    notification_manager,
)
from horovod.common.reductions import Max

__all__ = [
    "HostUpdateResult",
    "ObjectState",
    "State",
    "WorkerNotificationManager",
    "notification_manager",
    "run_fn",
]


class State:
    """What training needs to continue after ranks were lost or hosts changed; kept in memory.

    Base class of the states of all frameworks. Derive from it and write `save`, `restore` and
    `sync`, or use the state of your framework.

    Args:
        bcast_object: Function that returns the object of rank 0 on all ranks.
        get_rank: Function that returns the rank of this process.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = _Notices()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], object]] = []
        self._world_of_commit = -1

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], object]]) -> None:
        """Add functions to call whenever the ranks have regrouped, before the state is sent.

        A place to adapt what depends on the number of ranks, such as the learning rate.

        Args:
            callbacks: Functions without arguments, called in this order.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Prepare the state for a new world.

        Drops old notices about hosts, then calls `reset` and the callbacks.
        """
        # Notices for this world may have arrived already, and must be kept.
        since = _basics.joined_at
        waiting = [message for message in self._news() if message[0] >= since]
        # Clocks of other hosts differ, and rank 0 may have been on another host.
        self._last_updated_timestamp = min(self._last_updated_timestamp, since)
        self._host_messages = _Notices()
        for message in waiting:
            self._host_messages.put(message)
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Remember that hosts were added or removed, until `check_host_updates` looks.

        Args:
            timestamp: When it happened, in seconds since the epoch.
            update_res: What happened, a `HostUpdateResult`.
        """
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Save the state, then check for added and removed hosts.

        All ranks must call it, at the same point of training. After a rank is lost, training
        restarts from the last commit; more commits cost more time, fewer lose more work.

        Raises:
            HostsUpdatedInterrupt: If hosts were added or removed; `run` catches it.
        """
        # A collective that a lost rank has interrupted on a GPU has left no result worth saving.
        _native.finish_on_gpu()
        self.save()
        if self._world_of_commit != _basics.worlds:
            self._world_of_commit = _basics.worlds
            _native.elastic_reached("commit")
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Check for added and removed hosts, without saving.

        All ranks must call it, at the same point of training; what rank 0 knows decides.

        Raises:
            HostsUpdatedInterrupt: On all ranks together, if hosts were added or removed; `run`
                catches it.
        """
        before = latest = self._last_updated_timestamp
        combined = int(HostUpdateResult.no_update)
        # A script that has read the notice itself wants the new ranks in its next world.
        patient = not getattr(self._host_messages, "seen", False)
        for timestamp, result in self._news():
            if patient and notification_manager.is_early(timestamp):
                self._host_messages.put((timestamp, result))
            elif timestamp > latest:
                latest = timestamp
                combined |= int(result)
        before, latest, combined = self._from_rank_0((before, latest, combined))
        self._last_updated_timestamp = latest
        if latest > before:
            raise HostsUpdatedInterrupt(skip_sync=combined == HostUpdateResult.removed)

    def save(self) -> None:
        """Copy the state in memory.

        Raises:
            NotImplementedError: In this base class.
        """
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the last saved copy.

        Raises:
            NotImplementedError: In this base class.
        """
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks the state of rank 0.

        Raises:
            NotImplementedError: In this base class.
        """
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt the state to a new set of ranks; does nothing unless overridden."""

    def _news(self) -> list[tuple[float, int]]:
        # Nothing else removes any.
        return [self._host_messages.get_nowait() for _ in range(self._host_messages.qsize())]

    def _is_needed(self, own: bool) -> bool:
        """Whether a rank needs the state of rank 0; all ranks must agree."""
        return True

    def _from_rank_0(self, news: tuple[float, float, int]) -> tuple[float, float, int]:
        received: tuple[float, float, int] = self._bcast_object(news)
        return received


class _Notices(queue.Queue[tuple[float, int]]):
    """Notices about hosts, and whether the script has checked for them itself, as some do."""

    seen = False

    def empty(self) -> bool:
        """Whether there are no notices."""
        nothing = super().empty()
        self.seen = self.seen or not nothing
        return nothing


class ObjectState(State):
    """A state of named values, which become attributes.

    Saving keeps the values themselves, not copies of them: assign new lists and dictionaries
    instead of changing them.

    Args:
        bcast_object: Function that returns the object of rank 0 on all ranks.
        get_rank: Function that returns the rank of this process.
        **kwargs: Initial values, anything that can be pickled.
    """

    def __init__(
        self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        self._saved_state = kwargs
        self._put_back()
        super().__init__(bcast_object, get_rank)

    def save(self) -> None:
        """Keep the current values of the attributes."""
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        """Give the attributes the values that were saved last."""
        self._put_back()

    def sync(self) -> None:
        """Give all ranks the values that rank 0 has saved."""
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state)
            self._put_back()

    def _put_back(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


class FrameworkState(ObjectState):
    """A state whose ranks check for changes without pickling, because that may be in every step."""

    # An array to send notices in, and its contents: usually they are the same as before.
    _slate: Any = None
    _written: tuple[float, ...] = ()

    def _is_needed(self, own: bool) -> bool:
        array = self._array([float(own)])
        return bool(raw.allreduce(array, "elastic.is_needed", Max, out=array).tolist()[0])

    def _from_rank_0(self, news: tuple[float, float, int]) -> tuple[float, float, int]:
        slate = self._slate if self._written == news else self._array(news)
        # Its contents are undefined if the world ends.
        self._slate, self._written = None, ()
        _native.wait(_native.broadcast(slate, slate, "broadcast.elastic.host_updates", 0, True))
        before, latest, combined = slate.tolist()
        self._slate, self._written = slate, (before, latest, combined)
        return before, latest, int(combined)

    def _array(self, numbers: Sequence[float]) -> Any:
        """An array of float64 that the engine can send."""
        import numpy as np

        return np.array(numbers, dtype=np.float64)


_Result = TypeVar("_Result")


def run_fn(
    func: Callable[..., _Result],
    reset: Callable[[], object],
    foreign: tuple[type[Exception], ...] = (RuntimeError,),
) -> Callable[..., _Result]:
    """Wrap a function so that it is called again whenever the ranks have changed.

    Frameworks build their `elastic.run` on it.

    Args:
        func: Function whose first argument is a `State`; it returns when training is done.
        reset: Function that leaves the world and joins the next one.
        foreign: Exceptions by which the framework reports that one of its operations failed
            (default: `RuntimeError`). They count as a lost rank only if one was lost.

    Returns:
        A function that takes a state and the other arguments of `func`, and returns what `func`
        returns.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> _Result:
        departure = Departure()
        notification_manager.init()
        notification_manager.register_listener(state)
        try:
            with departure.watched():
                loop = _Loop(state, reset, departure)
                return _in_worlds(loop, lambda: func(state, *args, **kwargs), foreign)
        finally:
            notification_manager.remove_listener(state)

    return wrapper


def rejoin() -> None:
    """Leaves the world and joins the next one."""
    _basics.rejoin()


def _in_worlds(
    loop: _Loop, func: Callable[[], _Result], foreign: tuple[type[Exception], ...]
) -> _Result:
    while True:
        loop.join()
        try:
            loop.enter()
            return func()
        except HostsUpdatedInterrupt as interrupt:
            loop.on_update(interrupt)
        except HorovodInternalError as error:
            loop.on_loss(error)
        except foreign:
            # A failure in a graph or a compiled program is raised as the framework's own error,
            # which has only a text. Whether the world has ended is known here.
            loss = HorovodInternalError.last()
            if loss is None:
                raise
            loop.on_loss(loss)


class _Loop:
    """The state of the loop around a function."""

    def __init__(self, state: State, reset: Callable[[], object], departure: Departure) -> None:
        self.state = state
        self._reset = reset
        self._departure = departure
        self._resets = False
        self._needs = True

    def join(self) -> None:
        """Joins the next world; the first one has already been joined."""
        if not self._resets:
            # A rank that deferred joining joins now.
            _basics.arrive()
        for number in range(_TRIES if self._resets else 0):
            try:
                self._reset()
            except HorovodInternalError:
                # The native module retries as long as there is a launcher.
                if number == _TRIES - 1:
                    raise
                time.sleep(min(0.05 * 2**number, 1.0))
            else:
                self._departure.tell()
                return

    def enter(self) -> None:
        """Receives the state in a world that has just been joined."""
        if self._resets:
            self.state.on_reset()
        self._resets = True
        needed = self._needs
        if _native.is_elastic():
            # A rank may be new, or may have lost another, while the rest are unaware of it.
            needed = self.state._is_needed(needed)
        if needed:
            self.state.sync()
        _native.elastic_reached("state")

    def on_loss(self, error: HorovodInternalError) -> None:
        """Undoes what has been done since the last commit, because a rank was lost.

        It also undoes a `sync` that is half done: this rank may have to send its state next.
        """
        text = str(error)
        if text and error.cause in _UNREPORTED:
            print(f"horovod: rank {_place()} restarting: {text}", file=sys.stderr, flush=True)
        self.state.restore()
        self._needs = True

    def on_update(self, interrupt: HostsUpdatedInterrupt) -> None:
        """Handles ranks that join or leave: all ranks have stopped, and continue, at the same
        place."""
        # New ranks get the current values, whenever the last commit was.
        self.state.save()
        self._needs = not interrupt.skip_sync


_TRIES = 6
# The launcher reports everything else that ends a world.
_UNREPORTED = ("", "launcher_lost")


def _place() -> str:
    return str(_native.rank()) if _native.is_initialized() else "?"
