"""What all readers have in common: shuffling, batches of one size, and loading ahead.

A reader is a sequence of epochs. Each time it is iterated over, a thread converts and shuffles the
rows of its shard and stays a few batches ahead; it ends with the epoch, or when the iteration is
given up. Nothing is pickled.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from horovod.data.columns import Batch, Columns, Conversion
from horovod.data.dealing import UNEVEN, Shard, rows_to_take
from horovod.data.load_ahead import EndOfEpoch, LoadAhead
from horovod.data.shuffling import cut, in_order, rows_of, shuffled

if TYPE_CHECKING:
    import pyarrow as pa

_BUFFER_ROWS = 65_536
_BUFFER_BYTES = 256 << 20


class Options(TypedDict, total=False):
    """The options of `BatchReader`, which every reader has."""

    columns: Columns
    shuffle: bool
    seed: int
    shuffle_buffer_size: int | None
    uneven: str
    shard: tuple[int, int] | None
    transform: Callable[[Batch], Batch] | None
    ahead: int


class BatchReader:
    """Iterates over the batches of one rank, once per epoch; `ParquetReader` is one.

    A batch is a dict of NumPy arrays by column name. Without shuffling the arrays share the memory
    of what was read if they can, and are then read-only.

    Args:
        batch_size: Rows of a batch.
        columns: Names of the columns to read, or a dict from names to `Column` or None, which says
            how each becomes an array (default: None, all columns).
        shuffle: Whether every epoch has another order (default: True).
        seed: What the orders depend on, together with the epoch (default: 0). It must be the same
            on all ranks.
        shuffle_buffer_size: Rows among which the next one is drawn (default: None, 65536 or what
            fits into 256 MiB).
        uneven: What to do if ranks have different numbers of rows, or rows are left over after
            the last whole batch. "drop": all ranks take as many whole batches as the one with the
            fewest rows. "repeat": all take as many as the one with the most, and repeat rows of
            theirs to fill the last. "join": each takes what it has, the last batch may be short;
            call `hvd.join()` after the epoch (default: "drop").
        shard: Index and number of the part to read (default: None, rank and size of this process
            when an epoch begins, or everything outside of a world).
        transform: A function that gets every batch and returns another, in the thread that loads
            (default: None).
        ahead: Number of batches to load ahead; 0 for no thread (default: 8).
    """

    def __init__(
        self,
        batch_size: int,
        *,
        columns: Columns = None,
        shuffle: bool = True,
        seed: int = 0,
        shuffle_buffer_size: int | None = None,
        uneven: str = "drop",
        shard: tuple[int, int] | None = None,
        transform: Callable[[Batch], Batch] | None = None,
        ahead: int = 8,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        if uneven not in UNEVEN:
            raise ValueError(f"uneven must be one of {', '.join(UNEVEN)}, not {uneven!r}")
        if shard is not None and not 0 <= shard[0] < shard[1]:
            raise ValueError(f"shard must be (index, count) with index < count, not {shard}")
        self.batch_size = batch_size
        self.epoch = 0
        self._columns = columns
        self._shuffle, self._seed = shuffle, seed
        self._buffer_rows = shuffle_buffer_size
        self._uneven = uneven
        self._shard = None if shard is None else Shard(*shard)
        self._parts: list[tuple[int, int]] = []
        self._transform, self._ahead = transform, ahead

    @property
    def shard(self) -> Shard:
        """Index and number of the part that the next epoch reads."""
        shard = self._shard or _place_in_world()
        for index, count in self._parts:
            shard = shard.part(index, count)
        return shard

    @property
    def rows(self) -> int:
        """The number of rows of all shards together, after filters."""
        raise NotImplementedError(f"{type(self).__name__} does not know its number of rows")

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next epoch; without this, each iteration takes the next one.

        Args:
            epoch: The number of the epoch.
        """
        self.epoch = epoch

    def part(self, index: int, count: int) -> BatchReader:
        """A reader of one of `count` parts of this reader's shard, as for a worker process.

        Args:
            index: Which of the parts.
            count: Number of parts.

        Returns:
            The reader.
        """
        reader = copy.copy(self)
        reader._parts = [*self._parts, (index, count)]
        return reader

    def __len__(self) -> int:
        """The number of batches of an epoch on this rank."""
        return -(-self._rows_to_take(self.shard) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """The batches of one epoch; errors of the thread are raised here."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        batches = self._batches(epoch, self.shard)
        return _ahead(batches, self._ahead) if self._ahead > 0 else batches

    def _read(self, epoch: int, shard: Shard) -> Iterator[pa.RecordBatch]:
        """The rows of a shard in the order of an epoch, in chunks of any size."""
        raise NotImplementedError(f"{type(self).__name__} does not define `_read`")

    def _batches(self, epoch: int, shard: Shard) -> Iterator[Batch]:
        chunks = _first(self._rows_to_take(shard), self._chunks(epoch, shard))
        if self._shuffle:
            random = np.random.default_rng([self._seed, epoch, shard.index])
            batches = self._shuffled(chunks, random)
        else:
            batches = in_order(chunks, self.batch_size)
        return map(self._transform, batches) if self._transform else batches

    def _chunks(self, epoch: int, shard: Shard) -> Iterator[Batch]:
        """The rows as arrays, again from the start when they end, if rows are repeated."""
        convert = Conversion(self._columns)
        while True:
            for batch in self._read(epoch, shard):
                if batch.num_rows:
                    yield convert(batch)
            if self._uneven != "repeat":
                return

    def _shuffled(self, chunks: Iterator[Batch], random: np.random.Generator) -> Iterator[Batch]:
        for first in chunks:
            room = self._buffer_rows or _room(first)
            yield from shuffled(_with(first, chunks), self.batch_size, room, random)

    def _rows_to_take(self, shard: Shard) -> int:
        total = self.rows
        take = rows_to_take(total, shard, self.batch_size, self._uneven)
        if self._uneven == "drop" and not take:
            raise ValueError(
                f"{total} rows for {shard.count} shards make no whole batch of {self.batch_size}; "
                'use a smaller batch_size, or uneven="repeat" or "join"'
            )
        if take and not shard.rows(total):
            raise ValueError(
                f"shard {shard.index} of {shard.count} has none of the {total} rows to repeat; "
                "use fewer ranks"
            )
        return take


def _place_in_world() -> Shard:
    from horovod.common.world import is_initialized, rank, size

    return Shard(rank(), size()) if is_initialized() else Shard(0, 1)


def _ahead(batches: Iterator[Batch], room: int) -> Iterator[Batch]:
    loading = LoadAhead([batches], room)
    try:
        while True:
            batch = loading.take()
            if not isinstance(batch, EndOfEpoch):
                yield batch
            elif batch.error is not None:
                raise batch.error
            else:
                return
    finally:
        loading.close()


def _first(rows: int, chunks: Iterable[Batch]) -> Iterator[Batch]:
    """Chunks with as many rows."""
    if not rows:
        return
    for chunk in chunks:
        yield cut(chunk, 0, rows)
        rows -= rows_of(chunk)
        if rows <= 0:
            return


def _with(first: Batch, rest: Iterator[Batch]) -> Iterator[Batch]:
    yield first
    yield from rest


def _room(chunk: Batch) -> int:
    """How many rows like these fit into the shuffle buffer by default."""
    size = sum(array.nbytes for array in chunk.values()) / rows_of(chunk)
    return max(1, min(_BUFFER_ROWS, int(_BUFFER_BYTES / max(size, 1))))
