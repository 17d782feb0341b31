"""Where batches come from: a loader to derive from, and one that loads ahead in a thread.

Nothing here knows a framework, or what a batch is. The thread ends when the loader is closed and
before the interpreter does; a batch that is being loaded then is waited for, for a while.
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
        raise NotImplementedError(f"{type(self).__name__} does not say how many batches it has")

    def __iter__(self) -> Iterator[Any]:
        """The batches of one epoch, each as `_process_batch` makes it."""
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _iterate(self) -> Iterable[Any]:
        """The batches of one epoch."""
        raise NotImplementedError(f"{type(self).__name__} does not say where batches come from")

    def _process_batch(self, batch: Any) -> Any:
        """The batch as its user shall see it."""
        return batch


class AsyncDataLoaderMixin:
    """Loads batches ahead in a thread; goes before the loader among the bases.

    The thread goes on with the next epoch as soon as one is loaded. Iteration that stops in the
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
        self._ahead: _Ahead | None = None
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        """The batches of one epoch, or the rest of one; an error of the thread is raised here."""
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        if self._ahead is None:
            epoch: Callable[[], Iterable[Any]] = self._iterate  # type: ignore[attr-defined]
            self._ahead = _Ahead(epoch, self.async_loader_queue_size)
        ahead = self._ahead
        while True:
            batch = ahead.take()
            if self.debug_data_loader:
                _LOG.warning("took a batch, %d more are loaded", ahead.loaded)
            if not isinstance(batch, _End):
                yield self._process_batch(batch)  # type: ignore[attr-defined]
                continue
            if batch.error is not None:
                self.close_async_loader()
                raise batch.error
            return

    def close_async_loader(self) -> None:
        """End the thread and forget what it has loaded; the next epoch starts a new one."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None


class _End:
    """Stands behind the last batch of an epoch, with what made it the last if something failed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


class _Ahead:
    """The thread that loads, and the batches between it and whoever uses them."""

    def __init__(self, epoch: Callable[[], Iterable[Any]], room: int) -> None:
        self._epoch = epoch
        self._room = room
        self._ready: deque[Any] = deque()
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._load, name="horovod-data", daemon=True)
        self._thread.start()
        # A thread inside a framework's code while the interpreter ends can take the process down.
        atexit.register(self.close)

    @property
    def loaded(self) -> int:
        """How many batches, and ends of epochs, wait to be taken."""
        return len(self._ready)

    def take(self) -> Any:
        """The next batch or the end of an epoch; closing ends the wait and the epoch."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._closed)
            if self._closed:
                return _End()
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
                self._put(_End())
        except Exception as error:
            self._put(_End(error))

    def _put(self, batch: Any) -> bool:
        """Waits for room; False if nobody wants batches any more."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < self._room or self._closed)
            if not self._closed:
                self._ready.append(batch)
                self._changed.notify_all()
            return not self._closed
