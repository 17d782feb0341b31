"""Notices from the launcher of an elastic job: which hosts join and leave.

While there are listeners, a thread waits for notices in the native module and passes them on with
the time of their arrival. A notice is valid in one world only: the next one has taken it into
account.

There are two notices about new ranks: one when their host is found, and one when they are ready. In
between they import and build their models, and the others keep training.
"""

from __future__ import annotations

import enum
import threading
import time
from typing import Protocol

from horovod import _native
from horovod.common.basics import _basics

__all__ = [
    "HostUpdateResult",
    "WorkerNotificationManager",
    "notification_manager",
]


class HostUpdateResult(enum.IntFlag):
    """What happened to the hosts of an elastic job: flags that are integers.

    `no_update` is 0, `removed` 1, `added` 2 and `mixed` both.
    """

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class Listener(Protocol):
    """Receives notices; states do."""

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Called when hosts were added or removed."""


class WorkerNotificationManager:
    """Notifies listeners of this process when hosts are added or removed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._thread: threading.Thread | None = None
        self._latest = 0.0
        self._early: float | None = None

    def init(self) -> None:
        """Prepare for listening; listeners need nothing else."""

    def register_listener(self, listener: Listener) -> None:
        """Add a listener.

        Args:
            listener: Object whose `on_hosts_updated(timestamp, update_res)` is called from a
                thread.
        """
        with self._lock:
            self._listeners.append(listener)
            if self._thread is None and _native.is_elastic():
                # A daemon thread does not keep the program from exiting.
                self._thread = threading.Thread(
                    target=self._listen, name="horovod-news", daemon=True
                )
                self._thread.start()

    def remove_listener(self, listener: Listener) -> None:
        """Remove a listener.

        Args:
            listener: One that was added.
        """
        with self._lock:
            self._listeners = [each for each in self._listeners if each is not listener]

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Notify all listeners that hosts were added or removed.

        Args:
            timestamp: When it happened, in seconds since the epoch.
            update_res: What happened, a `HostUpdateResult`.
        """
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)

    def is_early(self, timestamp: float) -> bool:
        """Return whether a notice is about ranks that are not ready yet.

        Args:
            timestamp: Time of the notice.

        Returns:
            True if it is.
        """
        return timestamp == self._early

    def _listen(self) -> None:
        world, seen = 0, 0
        while self._is_wanted():
            if world != _basics.worlds:
                world, seen, self._early = _basics.worlds, 0, None
            news = _native.elastic_update(seen, _PATIENCE)
            if world != _basics.worlds:
                # It may belong to the previous world, which is over, or to this one: ask again.
                continue
            if news is not None:
                seen, flags = news
                self._tell(flags)
            elif not _native.is_initialized():
                # Between two worlds there is nothing to wait for.
                time.sleep(_PAUSE)

    def _tell(self, flags: int) -> None:
        due = HostUpdateResult(flags & HostUpdateResult.mixed)
        if due & HostUpdateResult.added:
            # The ranks of the early notice are ready.
            self._early = None
        if due:
            self.handle_hosts_updated(self._now(), due)
        if flags & _COMING and not due & HostUpdateResult.added:
            # Set before the listeners are called: they may ask for it at once.
            self._early = self._now()
            self.handle_hosts_updated(self._early, HostUpdateResult.added)

    def _is_wanted(self) -> bool:
        with self._lock:
            if not self._listeners:
                self._thread = None
            return self._thread is not None

    def _now(self) -> float:
        # Each time must be later than the last one, even if the clock is set back.
        self._latest = max(time.time(), self._latest + 1e-6)
        return self._latest


# The native module's flag for hosts that were found for ranks that are not ready yet.
_COMING = 4

_PATIENCE = 0.5
_PAUSE = 0.02

notification_manager = WorkerNotificationManager()
"""The notification manager of this process."""
