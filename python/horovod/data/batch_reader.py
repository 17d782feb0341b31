"""What all readers have in common: shuffling, batches of one size, and loading ahead.

A reader is a sequence of epochs. Each time it is iterated over, a thread converts and shuffles the
rows of its shard and stays a few batches ahead; it ends with the epoch, or when the iteration is
given up. Nothing is pickled.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from horovod.data.columns import Batch, Columns, Conversion
from horovod.data.dealing import UNEVEN, Piece, Shard, pieces, rows_to_take
from horovod.data.load_ahead import LoadAhead
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
        self.uneven = uneven
        self._shard = None if shard is None else Shard(*shard)
        self._parts: list[tuple[int, int]] = []
        self._transform, self._ahead = transform, ahead

    @property
    def shard(self) -> Shard:
        """Index and number of the part that the next epoch reads."""
        return self._parts_of(self._shard or place_in_world())

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

    def example(self) -> Batch:
        """Read a few rows without beginning an epoch, to see names, shapes and types.

        Returns:
            A batch of at most `batch_size` rows of this rank.
        """
        chunks = self._chunks(0, self.shard)
        for batch in in_order(chunks, self.batch_size):
            return self._transform(batch) if self._transform else batch
        raise ValueError("this rank has no rows")

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
        shard = self.shard
        return loaded_ahead(self._batches(epoch, shard, self._rows_to_take(shard)), self._ahead)

    def _read(self, epoch: int, shard: Shard) -> Iterator[pa.RecordBatch]:
        """The rows of a shard in the order of an epoch, in chunks of any size."""
        raise NotImplementedError(f"{type(self).__name__} does not define `_read`")

    def _pieces(self, epoch: int, shard: Shard, sizes: Sequence[int]) -> list[Piece]:
        """What a shard reads of groups of rows that have these sizes, in the order of an epoch."""
        order = np.arange(len(sizes))
        if self._shuffle:
            order = np.random.default_rng([self._seed, epoch]).permutation(order)
        return pieces(order.tolist(), sizes, shard.rows(sum(sizes)))

    def _batches(self, epoch: int, shard: Shard, rows: int | None) -> Iterator[Batch]:
        """An epoch of so many rows, or of all that there are."""
        chunks = self._chunks(epoch, shard)
        if rows is not None:
            chunks = _first(rows, chunks)
        if self._shuffle:
            random = np.random.default_rng([self._seed, epoch, shard.index])
            batches = self._shuffled(chunks, random)
        else:
            batches = in_order(chunks, self.batch_size)
        if rows is None and self.uneven == "drop":
            batches = (batch for batch in batches if rows_of(batch) == self.batch_size)
        return map(self._transform, batches) if self._transform else batches

    def _chunks(self, epoch: int, shard: Shard) -> Iterator[Batch]:
        """The rows as arrays, again from the start when they end, if rows are repeated."""
        convert = Conversion(self._columns)
        while True:
            for batch in self._read(epoch, shard):
                if batch.num_rows:
                    yield convert(batch)
            if self.uneven != "repeat":
                return

    def _shuffled(self, chunks: Iterator[Batch], random: np.random.Generator) -> Iterator[Batch]:
        for first in chunks:
            room = self._buffer_rows or _room(first)
            yield from shuffled(_with(first, chunks), self.batch_size, room, random)

    def _rows_to_take(self, shard: Shard) -> int:
        total = self.rows
        take = rows_to_take(total, shard, self.batch_size, self.uneven)
        self._check(take, len(shard.rows(total)), f"{total} rows for {shard.count} shards")
        return take

    def _check(self, take: int, own: int, rows: str) -> None:
        """Raises if a shard cannot take as many rows."""
        if self.uneven == "drop" and not take:
            raise ValueError(
                f"{rows} make no whole batch of {self.batch_size}; "
                'use a smaller batch_size, or uneven="repeat" or "join"'
            )
        if take and not own:
            raise ValueError(f"{rows} leave this one none to repeat; use fewer ranks")

    def _parts_of(self, shard: Shard) -> Shard:
        for index, count in self._parts:
            shard = shard.part(index, count)
        return shard


def place_in_world() -> Shard:
    """Rank and size of this process; 0 and 1 outside of a world."""
    from horovod.common.world import is_initialized, rank, size

    return Shard(rank(), size()) if is_initialized() else Shard(0, 1)


def loaded_ahead(batches: Iterator[Batch], room: int) -> Iterator[Batch]:
    """The same batches, loaded by a thread that ends with the iteration; none without room."""
    if room <= 0:
        yield from batches
        return
    loading = LoadAhead([batches], room)
    try:
        yield from loading.epoch()
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
