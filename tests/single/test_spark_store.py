"""Stores of the Spark estimators: kinds, paths, and what they write."""

import pickle

import pyarrow as pa
import pytest
from pyarrow import parquet

from horovod.spark.common.store import (
    AbstractFilesystemStore,
    DBFSLocalStore,
    FilesystemStore,
    HDFSStore,
    LocalStore,
    Store,
)


@pytest.mark.parametrize(
    ("path", "kind", "prefix"),
    [
        ("/data/x", LocalStore, "file:///data/x"),
        ("file:///data/x", LocalStore, "file:///data/x"),
        ("hdfs://node:8020/data", HDFSStore, "hdfs://node:8020/data"),
        ("hdfs:///data", HDFSStore, "hdfs:///data"),
        ("dbfs:/data", DBFSLocalStore, "file:///dbfs/data"),
        ("/dbfs/data", DBFSLocalStore, "file:///dbfs/data"),
        ("memory://data", FilesystemStore, "memory://data"),
    ],
)
def test_create_makes_the_store_that_fits_the_path(path, kind, prefix):
    store = Store.create(path)
    assert type(store) is kind
    assert store.prefix_path == prefix


def test_paths_are_those_of_horovod():
    store = Store.create("/data/x/")
    assert store.get_train_data_path() == "file:///data/x/intermediate_train_data"
    assert store.get_train_data_path(2) == "file:///data/x/intermediate_train_data.2"
    assert store.get_val_data_path(0) == "file:///data/x/intermediate_val_data.0"
    assert store.get_test_data_path() == "file:///data/x/intermediate_test_data"
    assert store.get_runs_path() == "file:///data/x/runs"
    assert store.get_run_path("a") == "file:///data/x/runs/a"
    assert store.get_checkpoint_path("a") == "file:///data/x/runs/a/checkpoint"
    assert store.get_logs_path("a") == "file:///data/x/runs/a/logs"
    assert store.get_checkpoint_filename() == "checkpoint"
    assert store.get_localized_path(store.get_runs_path()) == "/data/x/runs"
    assert store.saving_runs()


def test_every_path_can_be_given():
    given = {"train_path": "/t", "val_path": "/v", "test_path": "/e", "runs_path": "/r"}
    store = Store.create("/data", **given, save_runs=False, checkpoint_filename="best")
    assert store.get_train_data_path() == "file:///t"
    assert store.get_val_data_path() == "file:///v"
    assert store.get_test_data_path() == "file:///e"
    assert store.get_checkpoint_path("a") == "file:///r/a/best"
    assert not store.saving_runs()


def test_dbfs_names_its_checkpoints_for_tensorflow():
    store = Store.create("dbfs:/data")
    assert store.get_checkpoint_path("a") == "file:///dbfs/data/runs/a/checkpoint.tf"


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("dbfs:/a/b", "/dbfs/a/b"),
        ("dbfs:///a/b", "/dbfs/a/b"),
        ("file:///dbfs/a/b", "/dbfs/a/b"),
        ("file:/dbfs/a/b", "/dbfs/a/b"),
        ("/dbfs/a/b", "/dbfs/a/b"),
    ],
)
def test_a_path_of_dbfs_is_one_below_dbfs(given, path):
    assert DBFSLocalStore.normalize_path(given) == path
    assert DBFSLocalStore.matches_dbfs(given)


@pytest.mark.parametrize("given", ["/a/b", "/dbfsa", "s3://dbfs/a", "file:///a"])
def test_another_path_is_none_of_dbfs(given):
    assert not DBFSLocalStore.matches_dbfs(given)
    with pytest.raises(ValueError, match="not one of DBFS"):
        DBFSLocalStore.normalize_path(given)


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("hdfs://node:8020/a/b", ("hdfs://", "node", 8020, "/a/b", 16)),
        ("hdfs://node/a", ("hdfs://", "node", None, "/a", 11)),
        ("hdfs:///a", ("hdfs://", None, None, "/a", 7)),
        ("node:8020/a", (None, "node", 8020, "/a", 9)),
        ("/a", (None, None, None, "/a", 0)),
    ],
)
def test_urls_of_hdfs_are_taken_apart(url, parts):
    assert HDFSStore.parse_url(url) == parts


def test_a_url_of_hdfs_without_a_path_is_refused():
    with pytest.raises(ValueError, match="hdfs://node:8020"):
        HDFSStore("hdfs://node:8020")


def test_host_and_port_of_hdfs_are_in_all_paths():
    store = HDFSStore("/data", host="node", port=8020)
    assert store.get_train_data_path() == "hdfs://node:8020/data/intermediate_train_data"
    assert store.get_localized_path(store.get_runs_path()) == "/data/runs"


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_files_are_written_and_read(tmp_path, kind):
    prefix = str(tmp_path) if kind == "local" else "memory://store-test"
    store = pickle.loads(pickle.dumps(Store.create(prefix)))
    path = store.get_run_path("a") + "/notes/first.txt"
    assert not store.exists(path)
    store.write_text(path, "text")
    assert store.exists(path) and store.read(path) == b"text"


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_sync_copies_a_folder_into_the_run(tmp_path, kind):
    store = Store.create(str(tmp_path / "store") if kind == "local" else "memory://sync-test")
    remote = store.to_remote("a", 3)
    assert remote.train_data_path == store.get_train_data_path(3)
    for text in ("one", "two"):
        with remote.get_local_output_dir() as folder:
            for name in ("checkpoint", "logs/events"):
                file = tmp_path.joinpath(folder, name)
                file.parent.mkdir(exist_ok=True)
                file.write_text(text)
            remote.sync(folder)
    assert store.read(remote.checkpoint_path) == b"two"
    assert store.read(remote.logs_path + "/events") == b"two"
    names = store.fs.ls(store.get_localized_path(remote.run_path), detail=False)
    assert {str(name).rsplit("/", 1)[1] for name in names} == {"checkpoint", "logs"}


def test_checkpoints_of_a_folder_are_listed_in_order(tmp_path):
    store = Store.create(str(tmp_path))
    assert store.get_checkpoints("a") == []
    for name in ("b.ckpt", "a.ckpt", "a.txt"):
        store.write_text(f"{store.get_checkpoint_path('a')}/{name}", "")
    found = store.get_checkpoints("a")
    assert [path.rsplit("/", 1)[1] for path in found] == ["a.ckpt", "b.ckpt"]


def test_only_folders_with_parquet_are_datasets(tmp_path):
    store = Store.create(str(tmp_path))
    path = store.get_train_data_path()
    assert not store.is_parquet_dataset(path)
    folder = tmp_path / "intermediate_train_data"
    folder.mkdir()
    assert not store.is_parquet_dataset(path)
    parquet.write_table(pa.table({"x": [1, 2]}), folder / "part-0.parquet")
    assert store.is_parquet_dataset(path)
    assert store.get_parquet_dataset(path).count_rows() == 2


def test_files_are_copied_into_a_store_of_fsspec(tmp_path):
    (tmp_path / "file").write_text("text")
    store = FilesystemStore("memory://copy-test")
    store.copy(str(tmp_path / "file"), "memory://copy-test/copied")
    assert store.read("memory://copy-test/copied") == b"text"
    assert isinstance(store, AbstractFilesystemStore)
