"""Leaving an elastic job gracefully when the process is asked to end.

The first SIGTERM notifies the launcher; training continues until the ranks next check for changes,
and the others then continue without this one, so that no step is lost. The second ends the process
at once. A handler that the program has installed is called as well.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from horovod import _native

_REASON = "it was sent SIGTERM"


class Departure:
    """Whether this process has been asked to end, while training can be left gracefully."""

    def __init__(self) -> None:
        self.asked = False
        self._former: signal._HANDLER = signal.SIG_DFL
        self._pid = os.getpid()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, SIGTERM means to leave at the next commit, where that is possible."""
        can_handle = threading.current_thread() is threading.main_thread()
        if not can_handle or not _native.is_elastic():
            yield
            return
        former = signal.signal(signal.SIGTERM, self._on_signal)
        # None stands for a handler that was not installed from Python.
        self._former = signal.SIG_DFL if former is None else former
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, self._former)

    def tell(self) -> None:
        """Notifies the launcher again in a new world, if the process was asked to end before."""
        if self.asked:
            _native.elastic_departing(_REASON)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._pid != os.getpid():
            # A forked child, such as a pool worker, ends as it would without Ronde.
            signal.signal(signal.SIGTERM, self._former)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if self.asked:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self.asked = True
        self.tell()
        if callable(self._former):
            self._former(number, frame)
