"""From a DataFrame to Parquet in the store, and what is known about it: rows, columns, shapes.

Data are written once for each DataFrame, store and split; another fit of the same DataFrame object
finds them. Each DataFrame has its own number in the store, so that fits of two do not disturb each
other.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from horovod.spark.common.columns import Kind, check_usable, kinds_of, plain, shaped
from horovod.spark.common.filesystem import Store
from horovod.spark.stage import gist

_SEED = 1


@dataclass(frozen=True)
class PreparedData:
    """Parquet in a store.

    Args:
        dataset_idx: Its number in the store, if it has one.
        train_path: Where the rows for training are.
        val_path: Where those for validation are; None without validation.
        train_rows: Number of rows for training.
        val_rows: Number of rows for validation.
        columns: What the columns hold.
    """

    dataset_idx: int | None
    train_path: str
    val_path: str | None
    train_rows: int
    val_rows: int
    columns: dict[str, Kind] = field(default_factory=dict)


@dataclass(frozen=True)
class Preparation:
    """How a DataFrame is prepared.

    Args:
        names: Columns to keep.
        validation: Share of the rows, or name of a column, that is for validation; None for none.
        partitions: Number of files.
        seed: Seed of the split.
        transformed: Whether ranks transform the data, so that any type of column is usable.
    """

    names: tuple[str, ...]
    validation: float | str | None
    partitions: int
    seed: int | None
    transformed: bool = False


def prepare(frame: Any, how: Preparation, store: Store) -> PreparedData:
    """Writes a DataFrame into the store, or finds it there."""
    kinds = kinds_of(frame.schema, how.names)
    if not how.transformed:
        check_usable(kinds)
    if isinstance(how.validation, str):
        kinds_of(frame.schema, [how.validation])
    place = (store.get_train_data_path(), store.get_val_data_path(), how)
    number, data = _written.find(frame, place)
    if data is None or not store.exists(data.train_path):
        data = _write(frame, how, store, number, kinds)
        _written.add(frame, place, number, data)
    return data


def describe(
    store: Store, number: int | None, names: Sequence[str], validation: object
) -> PreparedData:
    """What Parquet that somebody has written into the store holds."""
    train, val = store.get_train_data_path(number), store.get_val_data_path(number)
    for path in (train, val) if validation else (train,):
        if not store.is_parquet_dataset(path):
            raise ValueError(
                f"there are no Parquet files in `{path}`; write them there, or give the store "
                "`train_path` and `val_path`"
            )
    return _described(store, number, train, val if validation else None, names)


def forget() -> None:
    """Forgets what was written: the next fit of any DataFrame writes it again."""
    _written.clear()


def _write(
    frame: Any, how: Preparation, store: Store, number: int, kinds: dict[str, Kind]
) -> PreparedData:
    train, val = _divided(frame, how)
    paths = store.get_train_data_path(number), store.get_val_data_path(number)
    for rows, path in zip((train, val), paths):
        if rows is not None:
            _save(plain(rows, how.names).repartition(how.partitions), path)
    val_path = None if val is None else paths[1]
    data = _described(store, number, paths[0], val_path, how.names)
    if val is not None and data.val_rows == 0:
        raise ValueError(
            f"validation is {how.validation!r}, but no rows are left for it; choose a larger share "
            "or another column"
        )
    vectors = {name: kind.name == "vector" for name, kind in kinds.items()}
    columns = {
        name: Kind("vector", "vector", kind.shape) if vectors[name] else kind
        for name, kind in data.columns.items()
    }
    return PreparedData(number, paths[0], val_path, data.train_rows, data.val_rows, columns)


def _divided(frame: Any, how: Preparation) -> tuple[Any, Any]:
    """The rows for training and those for validation."""
    from pyspark.sql import functions

    if not how.validation:
        return frame, None
    if isinstance(how.validation, str):
        chosen = functions.col(f"`{how.validation}`").cast("double") > 0
        return frame.filter(~functions.coalesce(chosen, functions.lit(False))), frame.filter(chosen)
    seed = _SEED if how.seed is None else how.seed
    train, val = frame.randomSplit([1.0 - how.validation, how.validation], seed)
    return train, val


def _save(rows: Any, path: str) -> None:
    try:
        rows.write.mode("overwrite").parquet(path)
    except Exception as error:
        reason = gist(str(error)).lstrip(": ")
        raise RuntimeError(
            f"Spark could not write the data to `{path}`: {reason}\nhint: the store must be a "
            "place that the driver and all executors can write, such as hdfs:// or s3a://"
        ) from error


def _described(
    store: Store, number: int | None, train: str, val: str | None, names: Sequence[str]
) -> PreparedData:
    dataset = store.get_parquet_dataset(train)
    missing = [name for name in names if name not in dataset.schema.names]
    if missing:
        raise ValueError(f"the Parquet files in `{train}` have no column {missing}")
    rows = dataset.count_rows()
    if rows == 0:
        raise ValueError(
            f"there are no rows for training in `{train}`: the DataFrame is empty, or executors do "
            "not see the same folder as the driver"
        )
    kinds = kinds_of(_spark_schema(dataset.schema), names)
    first = dataset.head(1, columns=list(names)).to_pylist()[0]
    val_rows = 0 if val is None else store.get_parquet_dataset(val).count_rows()
    return PreparedData(number, train, val, rows, val_rows, shaped(kinds, first))


def _spark_schema(schema: Any) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


class _Written:
    """The data sets that this process has written, while their DataFrames live."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: list[tuple[weakref.ref[Any], object, int, PreparedData]] = []
        self._numbers: dict[object, int] = {}

    def find(
        self, frame: Any, place: tuple[str, str, Preparation]
    ) -> tuple[int, PreparedData | None]:
        """The number of a DataFrame in its store, and its data if they are written."""
        with self._lock:
            for own, where, number, data in self._found:
                if own() is frame and where == place:
                    return number, data
            number = self._numbers.get(place[:2], 0)
            self._numbers[place[:2]] = number + 1
            return number, None

    def add(self, frame: Any, place: object, number: int, data: PreparedData) -> None:
        """Remembers data that were written."""
        with self._lock:
            self._found = [each for each in self._found if each[0]() is not None]
            self._found.append((weakref.ref(frame), place, number, data))

    def clear(self) -> None:
        """Forgets them."""
        with self._lock:
            self._found.clear()


_written = _Written()
