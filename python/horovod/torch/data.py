"""The batches of a reader of `horovod.data` as tensors, through PyTorch's own `DataLoader`.

Tensors share the memory of the reader's arrays. Worker processes are possible but seldom of use:
the reader loads ahead in a thread, and what it calls releases the interpreter lock.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horovod.data import BatchReader

__all__ = ["BatchLoader"]

Tensors = dict[str, Any]


class BatchLoader(DataLoader[Tensors]):
    """A `DataLoader` over the batches of a reader, each a dict of tensors by column name.

    Without shuffling, tensors share the memory of what was read: copy them before you write to
    them. Columns of strings or bytes are lists.

    Args:
        reader: A reader of `horovod.data`, such as `ParquetReader`. It has the batch size.
        **options: Of `torch.utils.data.DataLoader`, such as `pin_memory`. With `num_workers`, each
            worker process reads a part of this rank's rows, and loads ahead itself.

    Example:
        ```python
        import pyarrow as pa
        import torch

        from horovod.data import ArrowReader
        from horovod.torch.data import BatchLoader

        table = pa.table({"x": [[1.0, 2.0]] * 64, "label": range(64)})
        loader = BatchLoader(ArrowReader(table, batch_size=16))
        for batch in loader:
            assert batch["x"].shape == (16, 2) and batch["label"].dtype == torch.int64
        ```
    """

    def __init__(self, reader: BatchReader, **options: Any) -> None:
        self.reader = reader
        super().__init__(_Batches(reader), batch_size=None, **options)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next epoch; without this, each iteration takes the next one.

        Args:
            epoch: The number of the epoch.
        """
        self.reader.set_epoch(epoch)

    def __len__(self) -> int:
        """The number of batches of an epoch on this rank."""
        if not self.num_workers:
            return len(self.reader)
        parts = (self.reader.part(index, self.num_workers) for index in range(self.num_workers))
        return sum(map(len, parts))

    def __iter__(self) -> Any:
        """The batches of one epoch."""
        iterator = super().__iter__()
        if self.num_workers:
            # The workers have copies of the reader.
            self.reader.epoch += 1
        return iterator


class _Batches(IterableDataset[Tensors]):
    """The reader, or this worker's part of it."""

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self._is_part = False

    def __iter__(self) -> Iterator[Tensors]:
        worker = get_worker_info()
        if worker is not None and not self._is_part:
            # A worker that stays keeps its part, and counts its epochs.
            self._reader = self._reader.part(worker.id, worker.num_workers)
            self._is_part = True
        for batch in self._reader:
            yield {name: _tensor(name, array) for name, array in batch.items()}


def _tensor(name: str, array: NDArray[Any]) -> Any:
    if array.dtype == object:
        return array.tolist()
    with warnings.catch_warnings():
        # Documented above; a copy would cost as much as reading.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        try:
            return torch.from_numpy(array)
        except TypeError as error:
            raise TypeError(
                f"column `{name}` has elements of type {array.dtype}, which PyTorch lacks; convert "
                f'them with `columns={{"{name}": Column(dtype=...)}}`'
            ) from error
