"""`ArrowReader` and `RayReader` outside of a world: data in memory, and streams."""

from itertools import islice

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

from horovod.data import ArrowReader, Column, RayReader  # noqa: E402

TABLE = pa.table({"x": np.arange(100), "y": np.arange(100) / 7})


def rows(reader):
    return [x for batch in reader for x in batch["x"].tolist()]


def chunks():
    return [TABLE.slice(0, 30), TABLE.slice(30, 50).to_batches()[0], TABLE.slice(80)]


class Stream:
    """Gives the same chunks in every epoch, and counts its epochs."""

    def __init__(self):
        self.epochs = 0

    def __call__(self):
        self.epochs += 1
        yield from chunks()


SOURCES = {
    "table": lambda: TABLE,
    "batch": lambda: TABLE.to_batches()[0],
    "chunks": chunks,
    "iterator": lambda: iter(chunks()),
    "stream": Stream,
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("shuffle", [False, True])
def test_tables_batches_and_streams_are_read_alike(source, shuffle):
    reader = ArrowReader(SOURCES[source](), 8, shuffle=shuffle, uneven="join")
    for _ in range(2):
        seen = rows(reader)
        assert sorted(seen) == list(range(100))
        assert (seen == list(range(100))) != shuffle


@pytest.mark.parametrize("source", [TABLE, Stream()], ids=type)
@pytest.mark.parametrize("ahead", [0, 1, 8])
def test_outside_of_a_world_only_whole_batches_are_taken(source, ahead):
    reader = ArrowReader(source, 8, ahead=ahead)
    assert [len(batch["x"]) for batch in reader] == [8] * 12


def test_data_that_all_ranks_have_is_dealt_out():
    readers = [
        ArrowReader(TABLE, 8, shard=(i, 3), uneven="repeat", shuffle=False) for i in range(3)
    ]
    assert [len(reader) for reader in readers] == [5, 5, 5]
    assert rows(readers[1]) == [*range(33, 66), *range(33, 40)]
    assert {x for reader in readers for x in rows(reader)} == set(range(100))


def test_data_in_memory_are_mixed_beyond_the_shuffle_buffer():
    table = pa.table({"x": np.arange(400_000)})
    first = next(iter(ArrowReader(table, 1000, shuffle_buffer_size=40_000)))["x"]
    assert first.max() - first.min() > 100_000


def test_columns_are_chosen_and_converted():
    columns = {"y": Column(dtype="float32", shape=(1,))}
    batch = ArrowReader(TABLE, 8, columns=columns).example()
    assert list(batch) == ["y"] and batch["y"].shape == (8, 1) and batch["y"].dtype == np.float32


def test_arrays_share_the_memory_of_the_table():
    array = TABLE.column("x").chunk(0).to_numpy()
    for batch in ArrowReader(TABLE, 8, shuffle=False):
        assert np.shares_memory(batch["x"], array)


def test_a_stream_is_read_once_per_epoch_and_never_ahead_of_its_room():
    stream = Stream()
    reader = ArrowReader(stream, 10, ahead=1)
    assert stream.epochs == 0
    list(reader)
    assert stream.epochs == 1


def test_what_needs_the_number_of_rows_is_refused_for_a_stream():
    for options in ({"uneven": "repeat"}, {"shard": (0, 2)}):
        with pytest.raises(ValueError, match="a stream has no known number of rows"):
            ArrowReader(Stream(), 8, **options)
    reader = ArrowReader(Stream(), 8)
    for fails in (lambda: len(reader), reader.example):
        with pytest.raises(TypeError, match="a stream has no"):
            fails()
    with pytest.raises(ValueError, match="cannot be split among worker processes"):
        reader.part(0, 2)


def test_a_shard_of_ray_is_asked_for_its_blocks_as_they_are():
    class Shard:
        def iter_batches(self, **options):
            self.options = options
            return chunks()

    shard = Shard()
    reader = RayReader(shard, 25, shuffle=False)
    assert rows(reader) == list(range(100))
    assert shard.options == {
        "batch_size": None,
        "batch_format": "pyarrow",
        "prefetch_batches": 1,
    }


def test_a_transform_may_change_the_number_of_rows():
    def odd(batch):
        return {"x": batch["x"][batch["x"] % 2 == 1]}

    for source in (TABLE, Stream()):
        seen = rows(ArrowReader(source, 10, transform=odd))
        assert sorted(seen) == list(range(1, 100, 2))


def test_an_exit_in_a_transform_ends_the_wait_for_its_batch():
    def leave(_):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        next(iter(ArrowReader(TABLE, 10, transform=leave)))


def test_batches_can_go_on_in_the_middle_of_an_epoch():
    reader = ArrowReader(TABLE, 10, seed=5)
    whole = rows(reader)
    reader.set_epoch(0)
    assert rows(islice(reader, 4, None)) == whole[40:]
