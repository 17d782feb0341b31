"""Reads Parquet into batches: row groups are dealt out to the ranks, decoded by Arrow's threads.

All ranks read the footers of all files, in the order of their names, and each works out what to
read: every epoch the row groups are put into an order that depends on seed and epoch, and each
shard gets a range of rows of it. Ranges differ by at most one row, so a row group at a border is
read by two. Memory is bounded: a few chunks of decoded rows, the shuffle buffer, the batches ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet

from horovod.data.batch_reader import BatchReader
from horovod.data.columns import names_of
from horovod.data.dealing import Shard
from horovod.data.storage import Paths, open_dataset

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from horovod.data.batch_reader import Options

_CHUNK_BYTES = 16 << 20
_CHUNK_ROWS = 65_536
# Footers are small, and far away on an object store.
_FOOTER_THREADS = 16


class _Index(NamedTuple):
    """The row groups of a dataset, and how many of their rows pass the filter."""

    dataset: Any
    groups: list[Any]
    sizes: list[int]
    chunk_rows: int


class ParquetReader(BatchReader):
    """Reads the batches of one rank from Parquet files.

    The rows are dealt out evenly: the shards of all ranks differ by at most one row, and with
    `shuffle=True` they change with every epoch. All ranks know how many batches each takes, without
    communication. Parquet written by Spark, Ray, pandas and petastorm is read alike.

    Args:
        path: File, folder or URL, or a list of files. URLs are `file://`, `hdfs://`, `s3://`,
            `s3a://`, `gs://`, and whatever fsspec supports.
        batch_size: Rows of a batch (default: 32).
        filters: Which rows to read, an expression of `pyarrow.dataset` or a list of tuples like
            `("day", ">", 3)`. Every rank reads the columns in it once to count the rows, unless
            statistics or folder names decide (default: None, all rows).
        filesystem: Filesystem of pyarrow or fsspec that `path` belongs to (default: None, the one
            that `path` names).
        storage_options: Options for fsspec, which then opens the path (default: None).
        cache: Whether to keep the rows of this rank in memory. They are then the same ones in every
            epoch (default: False).
        **options: As in `BatchReader`: columns, shuffle, seed, shuffle_buffer_size, uneven, shard,
            transform, ahead.

    Example:
        ```python
        import tempfile

        import pyarrow as pa
        import pyarrow.parquet as pq

        from horovod.data import ParquetReader

        with tempfile.TemporaryDirectory() as folder:
            table = pa.table({"x": [[1.0, 2.0]] * 64, "label": range(64)})
            pq.write_table(table, f"{folder}/part-0.parquet", row_group_size=16)
            reader = ParquetReader(folder, batch_size=16, seed=1)
            assert len(reader) == 4
            for batch in reader:
                assert batch["x"].shape == (16, 2) and batch["label"].shape == (16,)
        ```
    """

    def __init__(
        self,
        path: Paths,
        batch_size: int = 32,
        *,
        filters: Any = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(batch_size, **options)
        self._source = (path, filesystem, storage_options)
        self._filter = _expression(filters)
        self._opened: _Index | None = None
        self._cached: tuple[Shard, list[pa.RecordBatch]] | None = None
        self._cache = cache

    @property
    def schema(self) -> pa.Schema:
        """Arrow's schema of the columns that are read."""
        schema = self._index.dataset.schema
        return pa.schema([schema.field(name) for name in names_of(self._columns, schema.names)])

    @property
    def rows(self) -> int:
        """The number of rows of all shards together, after filters."""
        return sum(self._index.sizes)

    def __getstate__(self) -> dict[str, Any]:
        """All but what was read: a worker process opens the files itself."""
        return {**self.__dict__, "_opened": None, "_cached": None}

    @property
    def _index(self) -> _Index:
        if self._opened is None:
            self._opened = _indexed(open_dataset(*self._source), self._filter)
        return self._opened

    def _read(self, epoch: int, shard: Shard) -> Iterator[pa.RecordBatch]:
        if not self._cache:
            return self._decoded(epoch, shard)
        if self._cached is None or self._cached[0] != shard:
            self._cached = shard, list(self._decoded(0, shard))
        return iter(self._cached[1])

    def _decoded(self, epoch: int, shard: Shard) -> Iterator[pa.RecordBatch]:
        index = self._index
        chosen = self._pieces(epoch, shard, index.sizes)
        if not chosen:
            return
        # One scan reads ahead over the borders of row groups.
        scanned = pyarrow.dataset.FileSystemDataset(
            [index.groups[piece.group] for piece in chosen],
            index.dataset.schema,
            index.dataset.format,
            index.dataset.filesystem,
        ).scanner(
            columns=self.schema.names,
            filter=self._filter,
            batch_size=index.chunk_rows,
            batch_readahead=2,
            fragment_readahead=1,
            fragment_scan_options=_scan_options(index.dataset.filesystem),
        )
        # Only the first piece skips rows, and only the last one ends early.
        skip, take = chosen[0].skip, sum(piece.take for piece in chosen)
        with scanned.to_reader() as batches:
            for batch in batches:
                part = batch.slice(skip, take)
                skip, take = max(0, skip - batch.num_rows), take - part.num_rows
                yield part
                if not take:
                    return


def _indexed(dataset: Any, expression: Any) -> _Index:
    """Reads the footers, and counts the rows that pass the filter."""
    files = sorted(dataset.get_fragments(), key=lambda file: str(file.path))
    with ThreadPoolExecutor(min(_FOOTER_THREADS, len(files)), "horovod-footers") as threads:
        groups = list(chain(*threads.map(lambda file: file.split_by_row_group(), files)))
        if expression is None:
            sizes = [group.row_groups[0].num_rows for group in groups]
        else:
            matching = {"filter": expression, "schema": dataset.schema}
            sizes = list(threads.map(lambda group: group.scanner(**matching).count_rows(), groups))
    footers = [group.row_groups[0] for group in groups]
    rows = sum(footer.num_rows for footer in footers)
    row_bytes = sum(footer.total_byte_size for footer in footers) / max(rows, 1)
    chunk_rows = max(1, min(_CHUNK_ROWS, int(_CHUNK_BYTES / max(row_bytes, 1))))
    return _Index(dataset, groups, sizes, chunk_rows)


def _scan_options(filesystem: Any) -> Any:
    """Files that are near are read as they are decoded, far ones a row group at a time."""
    near = isinstance(filesystem, pyarrow.fs.LocalFileSystem)
    return pyarrow.dataset.ParquetFragmentScanOptions(pre_buffer=not near)


def _expression(filters: Any) -> Any:
    if filters is None or isinstance(filters, pyarrow.dataset.Expression):
        return filters
    return pyarrow.parquet.filters_to_expression(filters)
