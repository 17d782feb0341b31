"""Data loaders: a base class, and a mixin that loads ahead in a thread.

Nothing here depends on a framework, or on what a batch is. The thread ends when the loader is
closed, and before the interpreter exits; a batch that is being loaded then is waited for, up to a
limit.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = [
    "AsyncDataLoaderMixin",
    "BaseDataLoader",
]

_LOG = logging.getLogger("horovod.data")
_LAST_BATCH_SECONDS = 5.0


class BaseDataLoader:
    """Base class of data loaders; derive from it and write `_iterate`.

    `_iterate` yields the batches of one epoch; `_process_batch` may be overridden to change each of
    them.

    Example:
        ```python
        from horovod.data import AsyncDataLoaderMixin, BaseDataLoader


        class Numbers(BaseDataLoader):
            def __len__(self):
                return 3

            def _iterate(self):
                yield from range(3)


        class NumbersAhead(AsyncDataLoaderMixin, Numbers):
            pass


        loader = NumbersAhead(async_loader_queue_size=2)
        assert list(loader) == [0, 1, 2]
        loader.close_async_loader()
        ```
    """

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define the number of batches (`__len__`)"
        )

    def __iter__(self) -> Iterator[Any]:
        """The batches of one epoch, each after `_process_batch`."""
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _iterate(self) -> Iterable[Any]:
        """The batches of one epoch."""
        raise NotImplementedError(f"{type(self).__name__} does not define `_iterate`")

    def _process_batch(self, batch: Any) -> Any:
        """Transforms a batch before it is returned to the user."""
        return batch


class AsyncDataLoaderMixin:
    """Loads batches ahead in a thread; put it before the loader in the list of base classes.

    The thread continues with the next epoch as soon as one is loaded. Iteration that stops in the
    middle of an epoch continues there next time. `_process_batch` runs in the thread that uses the
    batches.

    Args:
        async_loader_queue_size: Number of batches to load ahead; 0 for no thread (default: 64).
        debug_data_loader: Whether to log how many batches are loaded (default: False).
        *args: Arguments of the loader.
        **kwargs: Keyword arguments of the loader.
    """

    def __init__(
        self,
        async_loader_queue_size: int = 64,
        debug_data_loader: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._prefetcher: _Prefetcher | None = None
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        """The batches of one epoch, or the rest of one; errors of the thread are raised here."""
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        if self._prefetcher is None:
            epoch: Callable[[], Iterable[Any]] = self._iterate  # type: ignore[attr-defined]
            self._prefetcher = _Prefetcher(epoch, self.async_loader_queue_size)
        prefetcher = self._prefetcher
        while True:
            batch = prefetcher.take()
            if self.debug_data_loader:
                _LOG.warning("took a batch, %d more are loaded", prefetcher.loaded)
            if not isinstance(batch, _EndOfEpoch):
                yield self._process_batch(batch)  # type: ignore[attr-defined]
                continue
            if batch.error is not None:
                self.close_async_loader()
                raise batch.error
            return

    def close_async_loader(self) -> None:
        """End the thread and drop what it has loaded; the next epoch starts a new one."""
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None


class _EndOfEpoch:
    """Marks the end of an epoch in the queue, with the error if loading failed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


class _Prefetcher:
    """The thread that loads, and the queue of batches between it and the consumer."""

    def __init__(self, epoch: Callable[[], Iterable[Any]], room: int) -> None:
        self._epoch = epoch
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
                return _EndOfEpoch()
            self._changed.notify_all()
            return self._ready.popleft()

    def close(self) -> None:
        """Ends the thread, and every wait for a batch."""
        atexit.unregister(self.close)
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(_LAST_BATCH_SECONDS)

    def _load(self) -> None:
        try:
            while not self._closed:
                for batch in self._epoch():
                    if not self._put(batch):
                        return
                self._put(_EndOfEpoch())
        except Exception as error:
            self._put(_EndOfEpoch(error))

    def _put(self, batch: Any) -> bool:
        """Waits for space in the queue; returns False if it was closed."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < self._room or self._closed)
            if not self._closed:
                self._ready.append(batch)
                self._changed.notify_all()
            return not self._closed
