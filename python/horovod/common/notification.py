"""News from the launcher of an elastic job: which hosts come and go.

A thread waits for them in the native module while somebody listens, and hands them on with the time
at which they came. They mean something in one world only: the next one has been formed with them.

Of new ranks there are two notices: one when their host is found, and one when they are ready. In
between they import and build their models, and the others train on.
"""

from __future__ import annotations

import enum
import threading
import time
from typing import Protocol

from horovod import _native
from horovod.common.basics import _basics


class HostUpdateResult(enum.IntFlag):
    """What happened to the hosts of a job."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class Listener(Protocol):
    """Who wants to hear news; states do."""

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Hosts have come or gone."""


class WorkerNotificationManager:
    """The listeners of this process, and the thread that waits for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._thread: threading.Thread | None = None
        self._latest = 0.0
        self._early: float | None = None

    def init(self) -> None:
        """Gets ready to listen; the thread runs only where news can come."""

    def register_listener(self, listener: Listener) -> None:
        """Tells this one of news from now on."""
        with self._lock:
            self._listeners.append(listener)
            if self._thread is None and _native.is_elastic():
                # Such a thread does not keep a program from ending.
                self._thread = threading.Thread(
                    target=self._listen, name="horovod-news", daemon=True
                )
                self._thread.start()

    def remove_listener(self, listener: Listener) -> None:
        """Tells this one no more; the thread ends behind the last."""
        with self._lock:
            self._listeners = [each for each in self._listeners if each is not listener]

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Hands news on."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)

    def is_early(self, timestamp: float) -> bool:
        """Whether the notice of this time is of ranks that are not ready yet."""
        return timestamp == self._early

    def _listen(self) -> None:
        world, seen = 0, 0
        while self._is_wanted():
            if world != _basics.worlds:
                world, seen, self._early = _basics.worlds, 0, None
            news = _native.elastic_update(seen, _PATIENCE)
            if world != _basics.worlds:
                # It may be of the world before, which is over, or of this one: ask again.
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
            # Those of the early notice are ready.
            self._early = None
        if due:
            self.handle_hosts_updated(self._now(), due)
        if flags & _COMING and not due & HostUpdateResult.added:
            # Before anybody hears of it: whoever does may ask at once.
            self._early = self._now()
            self.handle_hosts_updated(self._early, HostUpdateResult.added)

    def _is_wanted(self) -> bool:
        with self._lock:
            if not self._listeners:
                self._thread = None
            return self._thread is not None

    def _now(self) -> float:
        # Each time must be later than the last one, even if somebody sets the clock.
        self._latest = max(time.time(), self._latest + 1e-6)
        return self._latest


# The bit by which the native module says that hosts were found for ranks that are not ready yet.
_COMING = 4

_PATIENCE = 0.5
_PAUSE = 0.02

notification_manager = WorkerNotificationManager()
