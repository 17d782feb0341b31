"""`ParquetReader`: which rows a rank gets, in which order, as which arrays, and how it ends."""

import datetime
import pickle
import subprocess
import sys
import threading
from decimal import Decimal

import numpy as np
import pytest
from object_store import object_store

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ds = pytest.importorskip("pyarrow.dataset")

from horovod.data import Column, ParquetReader  # noqa: E402
from horovod.data.dealing import Shard  # noqa: E402

# How Spark stores vectors.
VECTOR = pa.struct(
    {
        "type": pa.int8(),
        "size": pa.int32(),
        "indices": pa.list_(pa.int32()),
        "values": pa.list_(pa.float64()),
    }
)


@pytest.fixture
def numbers(tmp_path):
    """1050 rows in three files and twelve row groups of 100 rows or 50."""
    for file in range(3):
        table = pa.table({"x": np.arange(350) + 350 * file, "y": np.arange(350) / 7})
        pq.write_table(table, tmp_path / f"part-{file}.parquet", row_group_size=100)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part-0.parquet.crc").write_bytes(b"no Parquet")
    return tmp_path


def written(folder, **columns):
    pq.write_table(pa.table(columns), folder / "part.parquet", row_group_size=4)
    return folder


def only(path, **options):
    """The one batch of a small dataset."""
    batches = list(ParquetReader(path, 100, shuffle=False, uneven="join", **options))
    assert len(batches) == 1
    return batches[0]


def rows(reader):
    return [x for batch in reader for x in batch["x"].tolist()]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 11, 64])
def test_every_row_goes_to_one_rank_and_ranks_differ_by_one_row_at_most(numbers, shuffle, count):
    options = {"shuffle": shuffle, "uneven": "join", "columns": ["x"], "ahead": 0}
    shares = [rows(ParquetReader(numbers, 7, shard=(i, count), **options)) for i in range(count)]
    assert sorted(x for share in shares for x in share) == list(range(1050))
    assert {len(share) for share in shares} <= {1050 // count, 1050 // count + 1}
    if not shuffle:
        assert [x for share in shares for x in share] == list(range(1050))


def test_the_order_depends_on_seed_and_epoch_alone(numbers):
    reader = ParquetReader(numbers, 50, seed=3, shuffle_buffer_size=200)
    first, second = rows(reader), rows(reader)
    assert sorted(first) == sorted(second) == list(range(1050))
    assert first != second
    reader.set_epoch(0)
    assert rows(reader) == first
    assert rows(ParquetReader(numbers, 50, seed=4, shuffle_buffer_size=200)) != first
    again = ParquetReader(numbers, 50, seed=3, shuffle_buffer_size=200)
    again.set_epoch(1)
    assert rows(again) == second


def test_rows_are_mixed_across_row_groups_and_go_to_other_ranks_in_other_epochs(numbers):
    reader = ParquetReader(numbers, 50, shard=(0, 2), uneven="drop")
    for batch in reader:
        assert len(set(batch["x"] // 100)) > 2
    assert set(rows(reader)) != set(rows(reader))


def test_a_shuffle_buffer_that_is_smaller_than_the_data_still_moves_rows_far(numbers):
    order = rows(ParquetReader(numbers, 10, shuffle_buffer_size=300, uneven="join"))
    assert sorted(order) == list(range(1050))
    neighbours = sum(abs(a - b) == 1 for a, b in zip(order, order[1:]))
    assert neighbours < 50


@pytest.mark.parametrize(
    ("uneven", "expected"), [("drop", [34, 34, 34]), ("repeat", [36, 36, 36]), ("join", [35] * 3)]
)
def test_uneven_shards_are_dropped_repeated_or_left(numbers, uneven, expected):
    for count in (3, 30):
        readers = [
            ParquetReader(numbers, 2, shard=(i, count), uneven=uneven, filters=[("x", "<", 105)])
            for i in range(count)
        ]
        seen = [rows(reader) for reader in readers]
        assert [-(-len(share) // 2) for share in seen] == [len(reader) for reader in readers]
        if count == 3:
            assert [len(share) for share in seen] == expected
        if uneven != "join":
            assert len({len(share) for share in seen}) == 1
        if uneven == "repeat":
            assert {x for share in seen for x in share} == set(range(105))


def test_a_rank_without_a_batch_is_an_error_before_training(numbers):
    with pytest.raises(ValueError, match="1050 rows for 2 shards make no whole batch of 1000"):
        len(ParquetReader(numbers, 1000, shard=(0, 2)))
    few = ParquetReader(numbers, 1, shard=(0, 4), uneven="repeat", filters=[("x", "<", 3)])
    with pytest.raises(ValueError, match="3 rows for 4 shards leave this one none to repeat"):
        list(few)


def test_filters_choose_rows_and_the_rest_is_dealt_out_evenly(numbers):
    for filters in (
        [("x", ">=", 333), ("y", "<", 20.0)],
        (ds.field("x") >= 333) & (ds.field("y") < 20),
    ):
        readers = [
            ParquetReader(
                numbers,
                5,
                columns=["x"],
                filters=filters,
                shard=(i, 2),
                uneven="join",
                shuffle=False,
            )
            for i in range(2)
        ]
        expected = [x for x in range(333, 1050) if (x % 350) / 7 < 20]
        assert [x for reader in readers for x in rows(reader)] == expected
        assert readers[0].rows == len(expected)
        assert {len(rows(reader)) for reader in readers} == {len(expected) // 2}


def test_folders_named_by_values_become_columns_and_can_be_filtered(tmp_path):
    table = pa.table({"x": range(6), "day": [1, 1, 2, 2, 3, 3]})
    ds.write_dataset(
        table, tmp_path, format="parquet", partitioning=["day"], partitioning_flavor="hive"
    )
    batch = only(tmp_path, filters=[("day", ">", 1)])
    assert batch["x"].tolist() == [2, 3, 4, 5] and batch["day"].tolist() == [2, 2, 3, 3]


def test_numbers_share_the_memory_of_arrow(tmp_path):
    written(tmp_path, x=np.arange(4), pair=[[1.5, 2.5]] * 4)
    for array in only(tmp_path).values():
        assert not array.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_batches_of_a_shuffled_reader_can_be_written_to(numbers):
    for batch in ParquetReader(numbers, 64):
        batch["x"] += 1


def test_types_of_parquet_become_those_of_numpy(tmp_path):
    day = datetime.date(2024, 2, 29)
    written(
        tmp_path,
        flag=[True, False],
        text=["a", "bc"],
        raw=[b"\0", b""],
        day=[day, day],
        price=pa.array([Decimal("1.25"), Decimal("2.50")]),
        word=pa.array(["x", "y"]).dictionary_encode(),
        half=np.array([1, 2], np.float16),
    )
    batch = only(tmp_path)
    assert batch["flag"].dtype == bool and batch["flag"].tolist() == [True, False]
    assert batch["text"].tolist() == ["a", "bc"] and batch["raw"].tolist() == [b"\0", b""]
    assert batch["day"].tolist() == [day, day] and batch["day"].dtype == "datetime64[D]"
    assert batch["price"].dtype == np.float64 and batch["price"].tolist() == [1.25, 2.5]
    assert batch["word"].tolist() == ["x", "y"]
    assert batch["half"].dtype == np.float16


def test_lists_and_tensors_become_dimensions(tmp_path):
    images = np.arange(48, dtype=np.float32).reshape(4, 12)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(images.reshape(4, 3, 4))
    written(
        tmp_path,
        image=list(images),
        fixed=pa.FixedSizeListArray.from_arrays(images.ravel(), 12),
        nested=[[[1, 2], [3, 4], [5, 6]]] * 4,
        tensor=tensors,
        label=range(4),
    )
    shapes = {"image": Column((3, 4)), "fixed": None, "nested": None, "tensor": None}
    batch = only(tmp_path, columns={**shapes, "label": Column((1,), "float32")})
    assert np.array_equal(batch["image"], images.reshape(4, 3, 4))
    assert np.array_equal(batch["fixed"], images)
    assert batch["nested"].shape == (4, 3, 2)
    assert np.array_equal(batch["tensor"], images.reshape(4, 3, 4))
    assert batch["label"].dtype == np.float32 and batch["label"].shape == (4, 1)


@pytest.mark.parametrize("sparse", [False, True])
def test_vectors_of_spark_become_rows(tmp_path, sparse):
    dense = {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0, 3.0]}
    mixed = {"type": 0, "size": 3, "indices": [0, 2], "values": [4.0, 5.0]} if sparse else dense
    empty = {"type": 0, "size": 3, "indices": [], "values": []} if sparse else dense
    written(tmp_path, x=pa.array([dense, mixed, empty, dense], VECTOR))
    reader = ParquetReader(tmp_path, 3, shard=(1, 2), shuffle=False, uneven="join")
    zeros = [0.0] * 3 if sparse else [1.0, 2.0, 3.0]
    assert next(iter(reader))["x"].tolist() == [zeros, [1.0, 2.0, 3.0]]
    expected = [[1.0, 2.0, 3.0], [4.0, 0.0, 5.0] if sparse else [1.0, 2.0, 3.0]]
    assert only(tmp_path)["x"].tolist()[:2] == expected


def test_a_slice_of_lists_has_its_own_elements_only(tmp_path):
    written(tmp_path, x=[[i, -i] for i in range(9)])
    reader = ParquetReader(tmp_path, 3, shard=(1, 2), shuffle=False, uneven="join")
    assert [batch["x"].tolist() for batch in reader] == [
        [[4, -4], [5, -5], [6, -6]],
        [[7, -7], [8, -8]],
    ]


@pytest.mark.parametrize(
    ("values", "column", "words"),
    [
        ([1, None, 3], None, "column `x` has 1 nulls among 3 values; give `columns="),
        ([[1], None], None, "column `x` has 1 nulls in place of lists"),
        ([[1], [2, None]], None, "column `x` has 1 nulls among 3 values"),
        ([[1], [2, 3]], None, "column `x` has lists of 1 to 2 elements"),
        ([[1, 2], [3, 4]], Column((3,)), r"column `x` has 2 elements in a row; \(3,\) has not"),
        ([{"a": 1}], None, "column `x` has values of type struct<a: int64>"),
        (
            [{"type": 1, "size": None, "indices": None, "values": [1.0]}, None],
            None,
            "column `x` has 1 nulls in place of vectors",
        ),
        (
            [
                {"type": 1, "size": None, "indices": None, "values": [1.0]},
                {"type": 0, "size": 3, "indices": [2], "values": [1.0]},
            ],
            None,
            "column `x` has vectors of 1 to 3 elements",
        ),
    ],
)
def test_what_has_no_place_in_an_array_is_an_error_that_names_the_column(
    tmp_path, values, column, words
):
    written(tmp_path, x=values)
    for ahead in (0, 2):
        with pytest.raises((TypeError, ValueError), match=words):
            only(tmp_path, columns={"x": column}, ahead=ahead)


def test_lists_of_other_lengths_in_another_row_group_are_an_error(tmp_path):
    written(tmp_path, x=[[1]] * 4 + [[1, 2]] * 4)
    with pytest.raises(ValueError, match=r"rows of shape \(1,\) and of shape \(2,\)"):
        list(ParquetReader(tmp_path, 1, shuffle=False))


def test_nulls_are_filled_with_what_the_column_says(tmp_path):
    written(tmp_path, x=[1, None, 3], y=[[1.0, None]] * 3, text=["a", None, "c"])
    fills = {"x": Column(fill_null=-1), "y": Column(fill_null=0), "text": Column(fill_null="")}
    batch = only(tmp_path, columns=fills)
    assert batch["x"].tolist() == [1, -1, 3] and batch["x"].dtype == np.int64
    assert batch["y"].tolist() == [[1, 0]] * 3
    assert batch["text"].tolist() == ["a", "", "c"]


def test_unknown_columns_options_and_paths_are_errors(numbers, tmp_path):
    with pytest.raises(ValueError, match="there is no column `z`; the data has `x`, `y`"):
        next(iter(ParquetReader(numbers, columns=["x", "z"])))
    with pytest.raises(TypeError, match=r"use \['x'\]"):
        next(iter(ParquetReader(numbers, columns="x")))
    with pytest.raises(ValueError, match="one of drop, repeat, join, not 'pad'"):
        ParquetReader(numbers, uneven="pad")
    with pytest.raises(ValueError, match="shard must be"):
        ParquetReader(numbers, shard=(2, 2))
    with pytest.raises(ValueError, match="at least 1, not 0"):
        ParquetReader(numbers, 0)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        len(ParquetReader(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="there is no Parquet file in"):
        len(ParquetReader(tmp_path / "empty"))


def test_urls_lists_of_files_and_filesystems_are_read(numbers):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(str(numbers), "/reader", recursive=True)
    expected = rows(ParquetReader(numbers, 50))
    files = sorted(numbers.glob("*.parquet"), reverse=True)
    try:
        assert rows(ParquetReader(numbers.as_uri(), 50)) == expected
        assert rows(ParquetReader(files, 50)) == expected
        assert rows(ParquetReader("memory://reader", 50)) == expected
        assert rows(ParquetReader("/reader", 50, filesystem=memory)) == expected
        options = {"skip_instance_cache": True}
        assert rows(ParquetReader(str(numbers), 50, storage_options=options)) == expected
    finally:
        memory.rm("/reader", recursive=True)


def test_objects_of_s3_are_read_by_their_ranges(numbers):
    objects = {f"bucket/rows/{file.name}": file.read_bytes() for file in numbers.glob("*.parquet")}
    with object_store(objects) as (address, requests):
        place = f"key:secret@bucket/rows?region=here&scheme=http&endpoint_override={address}"
        # The second is Spark's name for the same place.
        urls = [f"s3://{place}", f"s3a://{place}"]
        shares = [rows(ParquetReader(url, 25, shard=(i, 2))) for i, url in enumerate(urls)]
    assert sorted(shares[0] + shares[1]) == list(range(1050))
    assert {path for _, path in requests} >= objects.keys()


def test_cached_rows_are_read_once_and_shuffled_in_every_epoch(numbers):
    reader = ParquetReader(numbers, 25, shard=(1, 2), cache=True)
    first = rows(reader)
    for file in numbers.glob("*.parquet"):
        file.unlink()
    second = rows(reader)
    assert first != second and sorted(first) == sorted(second) and len(first) == 525


def test_batches_are_transformed_in_the_thread_that_loads(numbers):
    threads = set()

    def doubled(batch):
        threads.add(threading.current_thread().name)
        return {"x": batch["x"] * 2}

    reader = ParquetReader(numbers, 50, transform=doubled)
    assert sorted(rows(reader)) == list(range(0, 2100, 2))
    assert threads == {"horovod-data"}


def test_an_iteration_that_is_given_up_ends_its_thread(numbers):
    before = threading.active_count()
    reader = ParquetReader(numbers, 1, ahead=2)
    batches = iter(reader)
    next(batches)
    assert any(thread.name == "horovod-data" for thread in threading.enumerate())
    batches.close()
    for _ in reader:
        break
    assert not any(thread.name == "horovod-data" for thread in threading.enumerate())
    assert threading.active_count() <= before + 1


def test_two_iterations_at_a_time_do_not_disturb_each_other(numbers):
    reader = ParquetReader(numbers, 50, shuffle=False)
    pairs = list(zip(reader, reader))
    assert len(pairs) == 21
    assert all(np.array_equal(a["x"], b["x"]) for a, b in pairs)


def test_a_reader_can_be_pickled_and_split_for_worker_processes(numbers):
    reader = ParquetReader(numbers, 10, shard=(1, 2), uneven="join", shuffle=False)
    assert len(reader) == 53
    copy = pickle.loads(pickle.dumps(reader))
    parts = [copy.part(index, 3) for index in range(3)]
    assert [x for part in parts for x in rows(part)] == list(range(525, 1050))


def test_rank_and_size_are_asked_for_when_an_epoch_begins(numbers, monkeypatch):
    """As they change in an elastic job."""
    reader = ParquetReader(numbers, 25, uneven="join")
    for place in (Shard(0, 1), Shard(1, 3), Shard(0, 2)):
        monkeypatch.setattr("horovod.data.batch_reader.place_in_world", lambda place=place: place)
        assert len(rows(reader)) == 1050 // place.count


def test_the_schema_is_that_of_the_chosen_columns(numbers):
    assert ParquetReader(numbers, columns=["y"]).schema == pa.schema([("y", pa.float64())])


def test_memory_is_bounded_by_row_groups_not_by_the_data(tmp_path):
    """256 MiB in row groups of 8 MiB, read with a small shuffle buffer."""
    values = np.repeat(np.arange(256, dtype=np.float32), 1 << 18)
    table = pa.table({"blob": pa.FixedSizeListArray.from_arrays(values, 1 << 18)})
    options = {"row_group_size": 8, "compression": "none", "use_dictionary": False}
    pq.write_table(table, tmp_path / "part.parquet", **options)
    del table, values
    before, held, seen = pa.total_allocated_bytes(), [], []
    for batch in ParquetReader(tmp_path, 1, shuffle_buffer_size=2, ahead=1):
        seen.append(int(batch["blob"][0, 0]))
        held.append(pa.total_allocated_bytes() - before)
    assert sorted(seen) == list(range(256))
    assert max(held) < 96 << 20


def test_the_interpreter_can_exit_in_the_middle_of_an_epoch(numbers):
    code = (
        "import sys; from horovod.data import ParquetReader\n"
        f"batches = iter(ParquetReader({str(numbers)!r}, 1, ahead=2))\n"
        "print(len(next(batches)['x']), {'torch', 'jax', 'tensorflow'} & set(sys.modules))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "1 set()\n", "")


def test_without_pyarrow_the_error_names_what_to_install():
    code = "import sys; sys.modules['pyarrow'] = None\nfrom horovod.data import ParquetReader"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "ImportError: horovod.data.ParquetReader needs NumPy and pyarrow, and pyarrow is not "
        "installed here; install it with `pip install pyarrow`"
    )
