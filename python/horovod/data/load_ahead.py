"""A thread that loads ahead, and the bounded queue between it and whoever takes the batches.

It knows nothing about batches. The thread ends when it is closed or has nothing more to load, and
before the interpreter exits; a batch that is being loaded then is waited for, up to a limit.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

_LAST_BATCH_SECONDS = 5.0


class EndOfEpoch:
    """Marks the end of an epoch in the queue, with the error if loading failed."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class LoadAhead:
    """Loads epochs in a thread, each an iterable of batches, at most `room` batches ahead."""

    def __init__(self, epochs: Iterable[Iterable[Any]], room: int) -> None:
        self._epochs = epochs
        self._room = room
        self._ready: deque[Any] = deque()
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._load, name="horovod-data", daemon=True)
        self._thread.start()
        # A thread that is in a framework's code while the interpreter exits can crash the process.
        atexit.register(self.close)

    @property
    def loaded(self) -> int:
        """How many batches and ends of epochs are in the queue."""
        return len(self._ready)

    def take(self) -> Any:
        """Waits for the next batch or the end of an epoch; closing ends the wait and the epoch."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._closed)
            if self._closed:
                return EndOfEpoch()
            self._changed.notify_all()
            return self._ready.popleft()

    def epoch(self) -> Iterator[Any]:
        """The batches up to the end of an epoch; raises the error of the thread."""
        while True:
            batch = self.take()
            if not isinstance(batch, EndOfEpoch):
                yield batch
            elif batch.error is not None:
                raise batch.error
            else:
                return

    def certain(self) -> int:
        """Waits until no more can be loaded; returns how many batches of the epoch are there."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) >= self._room or self._at_end())
            return len(self._ready) - self._at_end()

    def close(self) -> None:
        """Ends the thread, and every wait for a batch."""
        atexit.unregister(self.close)
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(_LAST_BATCH_SECONDS)

    def _at_end(self) -> bool:
        return bool(self._ready) and isinstance(self._ready[-1], EndOfEpoch)

    def _load(self) -> None:
        try:
            for epoch in self._epochs:
                for batch in epoch:
                    if not self._put(batch):
                        return
                if not self._put(EndOfEpoch()):
                    return
        except BaseException as error:
            # Also what ends a program: whoever takes the batches must not wait for ever.
            self._put(EndOfEpoch(error))

    def _put(self, batch: Any) -> bool:
        """Waits for space in the queue; returns False if it was closed."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < self._room or self._closed)
            if not self._closed:
                self._ready.append(batch)
                self._changed.notify_all()
            return not self._closed
