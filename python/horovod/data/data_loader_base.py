"""Data loaders: a base class, and a mixin that loads ahead in a thread.

Nothing here depends on a framework, or on what a batch is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from horovod.data.load_ahead import EndOfEpoch, LoadAhead

__all__ = [
    "AsyncDataLoaderMixin",
    "BaseDataLoader",
]

_LOG = logging.getLogger("horovod.data")


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
        self._prefetcher: LoadAhead | None = None
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        """The batches of one epoch, or the rest of one; errors of the thread are raised here."""
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        if self._prefetcher is None:
            self._prefetcher = LoadAhead(self._epochs(), self.async_loader_queue_size)
        prefetcher = self._prefetcher
        while True:
            batch = prefetcher.take()
            if self.debug_data_loader:
                _LOG.warning("took a batch, %d more are loaded", prefetcher.loaded)
            if not isinstance(batch, EndOfEpoch):
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

    def _epochs(self) -> Iterator[Iterable[Any]]:
        while True:
            yield self._iterate()  # type: ignore[attr-defined]
