"""Batches of Arrow data that a rank already has: a Spark partition, a Ray Data shard, a table.

By default the data are the rank's own, and nobody knows how many the others have; where that
matters, the ranks agree: once per epoch if each knows its rows, and otherwise once for all batches
that are loaded ahead (`agreement`). With `shard`, all ranks have the same data, and each reads its
rows of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Union

import pyarrow as pa

from horovod.data.agreement import in_step, least, most
from horovod.data.batch_reader import BatchReader, loaded_ahead, place_in_world
from horovod.data.columns import Batch, names_of
from horovod.data.dealing import Shard, rows_to_take

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from horovod.data.batch_reader import Options

Chunk = Union["pa.Table", "pa.RecordBatch"]
Source = Union[Chunk, Iterable[Chunk], Callable[[], Iterable[Chunk]]]

# Without loading ahead, ranks still need some batches to agree on.
_LEAST_ROOM = 1
# Data in memory are shuffled in pieces before their rows are.
_PIECE_ROWS = 4096


class ArrowReader(BatchReader):
    """Reads batches from tables and record batches of Arrow in memory, or from a stream of them.

    The partition that a task of Spark gets in `mapInArrow` is such data, and so is what
    `DataFrame.toArrow()` returns. Arrays share the memory of Arrow as in `ParquetReader`.

    Args:
        source: A table, a record batch, or an iterable of them, which is held in memory; or a
            function that returns an iterable for every epoch, of which only what is loaded ahead is
            in memory.
        batch_size: Rows of a batch (default: 32).
        **options: As in `BatchReader`: columns, shuffle, seed, shuffle_buffer_size, uneven, shard,
            transform, ahead. Without `shard`, the source holds this rank's own rows. With it, the
            source is the same on all ranks, and must be in memory. A stream cannot be combined with
            uneven="repeat".

    Example:
        ```python
        import pyarrow as pa

        from horovod.data import ArrowReader

        reader = ArrowReader(pa.table({"x": range(10)}), batch_size=4, uneven="join", shuffle=False)
        assert [len(batch["x"]) for batch in reader] == [4, 4, 2]
        ```
    """

    def __init__(self, source: Source, batch_size: int = 32, **options: Unpack[Options]) -> None:
        super().__init__(batch_size, **options)
        self._stream = source if callable(source) else None
        pieces = _PIECE_ROWS if self._shuffle else None
        self._held = [] if callable(source) else _record_batches(source, pieces)
        if self._stream and (self._shard or self.uneven == "repeat"):
            raise ValueError(
                "a stream has no known number of rows, so it can be neither sharded nor repeated; "
                'hold the data in memory, or use uneven="drop" or "join" without shard'
            )

    def example(self) -> Batch:
        """Read a few rows without beginning an epoch, to see names, shapes and types.

        Returns:
            A batch of at most `batch_size` rows of this rank.
        """
        if self._stream:
            raise TypeError("a stream has no rows before an epoch begins")
        return super().example()

    def part(self, index: int, count: int) -> BatchReader:
        """A reader of one of `count` parts of this reader's rows, as for a worker process.

        Args:
            index: Which of the parts.
            count: Number of parts.

        Returns:
            The reader.
        """
        if self._stream:
            raise ValueError("a stream cannot be split among worker processes; use none")
        return super().part(index, count)

    @property
    def shard(self) -> Shard:
        """Index and number of the part of the source that is read: by default all of it."""
        return self._parts_of(self._shard or Shard(0, 1))

    @property
    def rows(self) -> int:
        """The number of rows of the source."""
        if self._stream:
            raise TypeError("a stream has no known number of rows")
        return sum(batch.num_rows for batch in self._held)

    def __len__(self) -> int:
        """The number of batches of an epoch, where it does not depend on other ranks."""
        if self._agrees():
            raise TypeError(
                "the number of batches depends on the other ranks' rows, on which all agree when "
                "an epoch begins; use `shard` with the same data on all ranks to know it before"
            )
        return super().__len__()

    def __iter__(self) -> Iterator[Batch]:
        """The batches of one epoch; errors of the thread are raised here."""
        if not self._agrees() and not self._stream:
            return super().__iter__()
        epoch, self.epoch = self.epoch, self.epoch + 1
        return self._epoch(epoch)

    def _epoch(self, epoch: int) -> Iterator[Batch]:
        shard = self.shard
        if not self._stream:
            rows = self._agreed_rows()
            yield from loaded_ahead(self._batches(epoch, shard, rows), self._ahead)
            return
        batches = self._batches(epoch, shard, None)
        if self._agrees():
            yield from in_step(batches, max(self._ahead, _LEAST_ROOM))
        else:
            yield from loaded_ahead(batches, self._ahead)

    def _agrees(self) -> bool:
        """Whether the number of batches depends on other ranks."""
        own = self._shard is None and self.uneven != "join"
        return own and place_in_world().count > 1

    def _agreed_rows(self) -> int:
        own = len(self.shard.rows(self.rows))
        rows = least(own) if self.uneven == "drop" else most(own)
        take = rows_to_take(rows, Shard(0, 1), self.batch_size, self.uneven)
        self._check(take, own, f"{own} rows on this rank, and {rows} on another,")
        return take

    def _read(self, epoch: int, shard: Shard) -> Iterator[pa.RecordBatch]:
        if self._stream:
            for chunk in self._stream():
                for batch in _record_batches(chunk):
                    yield batch.select(names_of(self._columns, batch.schema.names))
            return
        for piece in self._pieces(epoch, shard, [batch.num_rows for batch in self._held]):
            batch = self._held[piece.group].slice(piece.skip, piece.take)
            yield batch.select(names_of(self._columns, batch.schema.names))


def _record_batches(source: Any, most_rows: int | None = None) -> list[pa.RecordBatch]:
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if isinstance(source, pa.Table):
        return source.to_batches(max_chunksize=most_rows)  # type: ignore[no-any-return]
    return [batch for chunk in source for batch in _record_batches(chunk, most_rows)]
