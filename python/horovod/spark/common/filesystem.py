"""What all stores share: the layout of their paths, and reading and writing files through fsspec.

Paths are given as Spark expects them, with their scheme; `get_localized_path` turns one into what
the file system itself expects. Stores travel to ranks, so they hold no connection: the file system
is opened where it is used. The kinds of stores are in `store`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped, unused-ignore]


class RemoteStore:
    """The paths of one run, for the ranks: what `Store.to_remote` returns.

    Its attributes are `train_data_path`, `val_data_path`, `test_data_path`, `saving_runs`,
    `runs_path`, `run_path`, `checkpoint_path`, `logs_path`, `checkpoint_filename` and
    `logs_subdir`; `get_local_output_dir()` gives a local folder as a context, and `sync(folder)`
    copies it to the run's path.

    Args:
        store: The store.
        run_id: The run.
        dataset_idx: Number of the data set in the store (default: None).
    """

    def __init__(self, store: Store, run_id: str, dataset_idx: int | None = None) -> None:
        self.store = store
        self.train_data_path = store.get_train_data_path(dataset_idx)
        self.val_data_path = store.get_val_data_path(dataset_idx)
        self.test_data_path = store.get_test_data_path(dataset_idx)
        self.saving_runs = store.saving_runs()
        self.runs_path = store.get_runs_path()
        self.run_path = store.get_run_path(run_id)
        self.checkpoint_path = store.get_checkpoint_path(run_id)
        self.logs_path = store.get_logs_path(run_id)
        self.checkpoint_filename = store.get_checkpoint_filename()
        self.logs_subdir = store.get_logs_subdir()
        self.get_local_output_dir = store.get_local_output_dir_fn(run_id)
        self.sync = store.sync_fn(run_id)


class Store(ABC):
    """Where an estimator keeps its data and runs; make one with `Store.create`.

    A class that derives from it says how to reach the file system and where its folders are.

    Example:
        ```python
        from horovod.spark.common.store import Store

        store = Store.create("file:///tmp/experiments")
        assert store.get_train_data_path() == "file:///tmp/experiments/intermediate_train_data"
        assert store.get_run_path("first") == "file:///tmp/experiments/runs/first"
        ```
    """

    prefix_path: str
    _train_path: str
    _val_path: str
    _test_path: str
    _runs_path: str
    _save_runs: bool
    _checkpoint_filename: str

    @property
    @abstractmethod
    def fs(self) -> Any:
        """The file system, of fsspec."""

    @abstractmethod
    def get_full_path(self, path: str) -> str:
        """Return a path with its scheme.

        Args:
            path: A path, with or without it.

        Returns:
            The path as Spark expects it.
        """

    @abstractmethod
    def get_localized_path(self, path: str) -> str:
        """Return a path as the file system itself expects it.

        Args:
            path: A path, with or without its scheme.

        Returns:
            The path.
        """

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> Store:
        """Make the store that fits a path.

        Args:
            prefix_path: A folder: of this machine, `hdfs://…`, `dbfs:/…` on Databricks, or any URL
                that fsspec knows, such as `s3://bucket/folder`.
            *args: Further arguments of that store.
            **kwargs: Further keyword arguments of that store.

        Returns:
            An `HDFSStore`, `DBFSLocalStore`, `LocalStore` or `FilesystemStore`.
        """
        from horovod.spark.common.store import (
            DBFSLocalStore,
            FilesystemStore,
            HDFSStore,
            LocalStore,
        )

        kinds: list[type[AbstractFilesystemStore]] = [HDFSStore, DBFSLocalStore, LocalStore]
        kind = next((kind for kind in kinds if kind.matches(prefix_path)), FilesystemStore)
        return kind(prefix_path, *args, **kwargs)

    def is_parquet_dataset(self, path: str) -> bool:
        """Return whether a path holds Parquet files.

        Args:
            path: A path of this store.

        Returns:
            Whether it does.
        """
        if not self.exists(path):
            return False
        try:
            return bool(self.get_parquet_dataset(path).files)
        except (OSError, ValueError):
            return False

    def get_parquet_dataset(self, path: str) -> Any:
        """Open a folder of Parquet files.

        Args:
            path: A path of this store.

        Returns:
            A `pyarrow.dataset.Dataset`.
        """
        from pyarrow import dataset

        place = self.get_localized_path(path)
        return dataset.dataset(place, filesystem=self.fs, format="parquet")

    def get_train_data_path(self, idx: int | None = None) -> str:
        """Return the path of the training data.

        Args:
            idx: Number of the data set (default: None).

        Returns:
            The path.
        """
        return _numbered(self._train_path, idx)

    def get_val_data_path(self, idx: int | None = None) -> str:
        """Return the path of the validation data.

        Args:
            idx: Number of the data set (default: None).

        Returns:
            The path.
        """
        return _numbered(self._val_path, idx)

    def get_test_data_path(self, idx: int | None = None) -> str:
        """Return the path of the test data.

        Args:
            idx: Number of the data set (default: None).

        Returns:
            The path.
        """
        return _numbered(self._test_path, idx)

    def get_data_metadata_path(self) -> str:
        """Return the path where programs may describe their data.

        Returns:
            The path.
        """
        return _joined(self.prefix_path, "data_metadata")

    def saving_runs(self) -> bool:
        """Return whether checkpoints and logs are kept.

        Returns:
            Whether they are.
        """
        return self._save_runs

    def get_runs_path(self) -> str:
        """Return the path of all runs.

        Returns:
            The path.
        """
        return self._runs_path

    def get_run_path(self, run_id: str) -> str:
        """Return the path of a run.

        Args:
            run_id: The run.

        Returns:
            The path.
        """
        return _joined(self._runs_path, run_id)

    def get_checkpoint_path(self, run_id: str) -> str:
        """Return the path of a run's checkpoint.

        Args:
            run_id: The run.

        Returns:
            The path.
        """
        return _joined(self.get_run_path(run_id), self._checkpoint_filename)

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """Return the files below a run's checkpoint path.

        Args:
            run_id: The run.
            suffix: What their names end with (default: `.ckpt`).

        Returns:
            Their paths, sorted; an empty list if there are none.
        """
        place = self.get_localized_path(self.get_checkpoint_path(run_id))
        if not self.fs.isdir(place):
            return []
        names = self.fs.ls(place, detail=False)
        return sorted(str(name) for name in names if str(name).endswith(suffix))

    def get_logs_path(self, run_id: str) -> str:
        """Return the path of a run's logs.

        Args:
            run_id: The run.

        Returns:
            The path.
        """
        return _joined(self.get_run_path(run_id), self.get_logs_subdir())

    def get_checkpoint_filename(self) -> str:
        """Return the name of checkpoints.

        Returns:
            The name.
        """
        return self._checkpoint_filename

    def get_logs_subdir(self) -> str:
        """Return the name of the folder for logs.

        Returns:
            The name.
        """
        return "logs"

    def exists(self, path: str) -> bool:
        """Return whether a path exists.

        Args:
            path: A path of this store.

        Returns:
            Whether it does.
        """
        return bool(self.fs.exists(self.get_localized_path(path)))

    def read(self, path: str) -> bytes:
        """Read a file.

        Args:
            path: A path of this store.

        Returns:
            What it holds.
        """
        content = self.fs.cat_file(self.get_localized_path(path))
        assert isinstance(content, bytes)
        return content

    def write_text(self, path: str, text: str) -> None:
        """Write a file.

        Args:
            path: A path of this store.
            text: What it will hold.
        """
        self._make_parent(self.get_localized_path(path))
        with self.fs.open(self.get_localized_path(path), "w") as file:
            file.write(text)

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], AbstractContextManager[str]]:
        """Return a function that makes a local folder for what a run writes.

        Args:
            run_id: The run.

        Returns:
            A function whose result is a context that gives the folder.
        """
        return _temporary_folder

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """Return a function that copies a local folder to the path of a run.

        Args:
            run_id: The run.

        Returns:
            A function of the folder.
        """

        def sync(local_run_path: str) -> None:
            """Copies every file; each appears whole under its name, or not at all."""
            target = self.get_localized_path(self.get_run_path(run_id))
            folder = Path(local_run_path)
            for file in sorted(each for each in folder.rglob("*") if each.is_file()):
                self._replace(file, f"{target}/{file.relative_to(folder).as_posix()}")

        return sync

    def to_remote(self, run_id: str, dataset_idx: int | None = None) -> RemoteStore:
        """Return the paths of one run, for the ranks.

        Args:
            run_id: The run.
            dataset_idx: Number of the data set (default: None).

        Returns:
            The paths, and what the ranks do with them.
        """
        return RemoteStore(self, run_id, dataset_idx)

    def read_serialized_keras_model(
        self, ckpt_path: str, model: Any, custom_objects: dict[str, Any] | None = None
    ) -> Any:
        """Read the Keras model of a checkpoint.

        Args:
            ckpt_path: Path of the checkpoint.
            model: A model of the same Keras.
            custom_objects: Classes and functions that the model uses, by name (default: None).

        Returns:
            What `horovod.spark.keras` stores of a model: its bytes, with `load()` for the model.
        """
        from horovod.spark.keras.saved import SavedModel

        return SavedModel.read(self.read(ckpt_path), model, custom_objects)

    def _make_parent(self, path: str) -> None:
        # Object stores have no folders.
        with suppress(NotImplementedError):
            self.fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)

    def _replace(self, file: Path, path: str) -> None:
        fs = self.fs
        self._make_parent(path)
        if "file" in _protocols(fs):
            shutil.copyfile(file, f"{path}.part")
            os.replace(f"{path}.part", path)
        else:
            fs.put_file(str(file), path)


class AbstractFilesystemStore(Store):
    """Paths below a prefix in a file system of fsspec.

    Args:
        prefix_path: Folder of the store.
        train_path: Where the training data are (default: `intermediate_train_data` in it).
        val_path: Where the validation data are (default: `intermediate_val_data` in it).
        test_path: Where the test data are (default: `intermediate_test_data` in it).
        runs_path: Where runs are kept (default: `runs` in it).
        save_runs: Whether checkpoints and logs are kept (default: True).
        storage_options: Options of fsspec for the file system (default: None).
        checkpoint_filename: Name of checkpoints (default: `checkpoint`).
        **kwargs: Accepted for compatibility with Horovod.
    """

    CHECKPOINT_FILENAME = "checkpoint"

    def __init__(
        self,
        prefix_path: str,
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: dict[str, Any] | None = None,
        checkpoint_filename: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.storage_options = storage_options
        self.prefix_path = self.get_full_path(prefix_path)
        self._train_path = self._below(train_path, "intermediate_train_data")
        self._val_path = self._below(val_path, "intermediate_val_data")
        self._test_path = self._below(test_path, "intermediate_test_data")
        self._runs_path = self._below(runs_path, "runs")
        self._save_runs = save_runs
        self._checkpoint_filename = checkpoint_filename or self.CHECKPOINT_FILENAME

    @classmethod
    def matches(cls, path: str) -> bool:
        """Return whether a path belongs to this kind of store.

        Args:
            path: A path.

        Returns:
            Whether it does.
        """
        return True

    @property
    def fs(self) -> Any:
        """The file system, of fsspec."""
        return self.get_filesystem()

    def get_filesystem(self) -> Any:
        """Open the file system.

        Returns:
            A file system of fsspec.
        """
        return fsspec.core.url_to_fs(self.prefix_path, **(self.storage_options or {}))[0]

    def get_full_path(self, path: str) -> str:
        """Return a path with its scheme.

        Args:
            path: A path, with or without it.

        Returns:
            The path as Spark expects it.
        """
        return path if "://" in path else f"file://{os.path.abspath(path)}"

    def get_full_path_fn(self) -> Callable[[str], str]:
        """Return `get_full_path` as a function that can travel.

        Returns:
            The function.
        """
        return self.get_full_path

    def get_localized_path(self, path: str) -> str:
        """Return a path as the file system itself expects it.

        Args:
            path: A path, with or without its scheme.

        Returns:
            The path.
        """
        return str(self.fs._strip_protocol(path))

    def _below(self, path: str | None, name: str) -> str:
        return self.get_full_path(path) if path else _joined(self.prefix_path, name)


@contextmanager
def _temporary_folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="ronde-run-") as folder:
        yield folder


def _numbered(path: str, number: int | None) -> str:
    return path if number is None else f"{path}.{number}"


def _joined(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
