"""What a rank of an estimator is told, and the batches it makes of that.

A job travels to the ranks as one pickle, so that a model and the optimizer of its parameters stay
together. All ranks take the same number of batches in an epoch: the reader deals rows out evenly
and repeats a few to fill the last batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped, unused-ignore]

from horovod.spark.common.filesystem import RemoteStore
from horovod.spark.common.prepared import PreparedData
from horovod.spark.common.store import LocalStore
from horovod.spark.common.transformation import Transformation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horovod.data import BatchReader

# What one of petastorm's workers is worth.
_BATCHES_PER_WORKER = 4


class Batch(NamedTuple):
    """Rows as arrays."""

    features: list[NDArray[Any]]
    labels: list[NDArray[Any]]
    weights: NDArray[Any] | None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.features[0])


@dataclass
class Job:
    """All that a rank needs.

    Args:
        remote: The store.
        data: The Parquet in it.
        params: Values of the estimator's parameters, by name.
        run_id: The run.
        feature_shapes: Shape of each feature, as the user has given it; None as it is stored.
        env: Environment variables that the ranks need.
    """

    remote: RemoteStore
    data: PreparedData
    params: dict[str, Any]
    run_id: str
    feature_shapes: Sequence[Sequence[int] | None] | None = None
    env: dict[str, str] = field(default_factory=dict)

    def packed(self) -> bytes:
        """The job, for the ranks."""
        return bytes(cloudpickle.dumps(self))

    @staticmethod
    def unpacked(pickle: bytes) -> Job:
        """The job that `packed` has packed."""
        job: Job = cloudpickle.loads(pickle)
        return job

    def __getitem__(self, name: str) -> Any:
        """The value of a parameter."""
        return self.params[name]

    @property
    def validates(self) -> bool:
        """Whether there are rows for validation."""
        return self.data.val_path is not None

    def train_batches(self) -> Batches:
        """The batches of this rank for training."""
        return Batches(self, self.data.train_path, "train")

    def val_batches(self, uneven: str = "repeat") -> Batches:
        """The batches of this rank for validation."""
        assert self.data.val_path is not None
        return Batches(self, self.data.val_path, "val", uneven)


class Batches:
    """The batches of this rank: `epoch` gives those of one, `forever` those of all that follow."""

    def __init__(self, job: Job, path: str, part: str, uneven: str = "repeat") -> None:
        training = part == "train"
        self._job = job
        size = job["batch_size"] if training else job["val_batch_size"] or job["batch_size"]
        self._reader = _reader(job, path, part, size, uneven)
        wanted = job["train_steps_per_epoch" if training else "validation_steps_per_epoch"]
        self.steps = wanted or len(self._reader)
        self._rest: Iterator[Mapping[str, NDArray[Any]]] | None = None

    def start_at(self, epoch: int) -> None:
        """Begins with the order of this epoch."""
        self._reader.set_epoch(epoch)

    def epoch(self) -> Iterator[Batch]:
        """As many batches as an epoch has; those of the next one follow where these end."""
        return islice(self.forever(), self.steps)

    def whole(self) -> Iterator[Batch]:
        """The first batches of the data, the same each time."""
        self._reader.set_epoch(0)
        return map(self._split, islice(self._reader, self.steps))

    def forever(self) -> Iterator[Batch]:
        """Batches without end."""
        while True:
            if self._rest is None:
                self._rest = iter(self._reader)
            for arrays in self._rest:
                yield self._split(arrays)
            self._rest = None

    def _split(self, arrays: Mapping[str, NDArray[Any]]) -> Batch:
        job = self._job
        names = job["feature_cols"], job["label_cols"]
        for name in (*names[0], *names[1]):
            if name not in arrays:
                raise ValueError(f"the transformation_fn left out the column `{name}`")
        shapes = job.feature_shapes, job["label_shapes"]
        features, labels = (
            [
                shaped(arrays[name], shape, name)
                for name, shape in zip(own, given or [None] * len(own))
            ]
            for own, given in zip(names, shapes)
        )
        weight = job["sample_weight_col"]
        return Batch(features, labels, arrays[weight] if weight else None)


def shaped(array: NDArray[Any], shape: Sequence[int] | None, name: str) -> NDArray[Any]:
    """Rows in the shape that the user has given, with or without -1 for the batch."""
    if shape is None:
        return array
    whole = tuple(shape) if len(shape) and shape[0] == -1 else (len(array), *shape)
    try:
        return array.reshape(whole)
    except ValueError:
        raise ValueError(
            f"column `{name}` has rows of shape {array.shape[1:]}, which do not fit the given "
            f"shape {list(shape)}"
        ) from None


def _reader(job: Job, path: str, part: str, batch_size: int, uneven: str) -> BatchReader:
    from horovod.data import ParquetReader

    training = part == "train"
    store: Any = job.remote.store
    # Arrow reads local files without the interpreter lock.
    local = isinstance(store, LocalStore)
    given = job["transformation_fn"]
    change = (
        Transformation(
            given, job["transformation_edit_fields"], job["transformation_removed_fields"]
        )
        if given
        else None
    )
    return ParquetReader(
        store.get_localized_path(path),
        batch_size,
        filesystem=None if local else store.fs,
        cache=job["inmemory_cache_all"],
        columns=list(job.data.columns),
        shuffle=bool(job["shuffle"]) and training,
        seed=job["random_seed"] or 0,
        shuffle_buffer_size=job["shuffle_buffer_size"],
        uneven=uneven,
        transform=change,
        ahead=_BATCHES_PER_WORKER * job[f"{part}_reader_num_workers"],
    )
