"""What the estimators and models of all frameworks do alike.

`fit` writes the DataFrame into the store, runs the framework's training function on all ranks of
the backend, and makes a model of what rank 0 returns. `transform` runs the framework's prediction
on Arrow batches. The framework's part is a handful of methods whose names begin with `_`.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.ml import Estimator, Model

from horovod.spark.common import inference
from horovod.spark.common.backend import Backend, SparkBackend
from horovod.spark.common.columns import Kind
from horovod.spark.common.filesystem import Store
from horovod.spark.common.job import Job
from horovod.spark.common.params import EstimatorParams, ModelParams
from horovod.spark.common.persistence import ReadableAndWritable
from horovod.spark.common.prepared import Preparation, PreparedData, describe, prepare

__all__ = [
    "HorovodEstimator",
    "HorovodModel",
]


class HorovodEstimator(EstimatorParams, ReadableAndWritable, Estimator[Any]):
    """What the estimators of all frameworks have in common.

    Args:
        **options: Parameters, by name.
    """

    _framework = ""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.setParams(**options)

    def fit_on_parquet(
        self, params: dict[Any, Any] | None = None, dataset_idx: int | None = None
    ) -> Any:
        """Train on Parquet that is in the store already.

        Args:
            params: Parameters to use instead of those that are set (default: None).
            dataset_idx: Number of the data in the store (default: None, those without a number).

        Returns:
            The trained model.

        Raises:
            ValueError: If there are none, or parameters do not fit them.
        """
        chosen = self.copy(params) if params else self
        chosen._check()
        data = describe(chosen._store(), dataset_idx, chosen._names(), chosen._value("validation"))
        return chosen._trained(chosen._backend(), data)

    def _fit(self, dataset: Any) -> Any:
        self._check()
        backend = self._backend()
        how = Preparation(
            names=tuple(self._names()),
            validation=self._value("validation") or None,
            partitions=backend.num_processes() * self._value("partitions_per_process"),
            seed=self._value("random_seed"),
            transformed=self._value("transformation_fn") is not None,
        )
        with _described(dataset, f"{type(self).__name__}: data for training"):
            data = prepare(dataset, how, self._store())
        return self._trained(backend, data)

    def _trained(self, backend: Backend, data: PreparedData) -> Any:
        for name, rows in (("training", data.train_rows), ("validation", data.val_rows)):
            if 0 < rows < backend.num_processes():
                raise ValueError(
                    f"{rows} rows for {name} are too few for {backend.num_processes()} ranks"
                )
        self._check_shapes(data.columns)
        run_id = self._value("run_id") or self._new_run()
        of_the_driver = ("store", "backend", "validation")
        params = {name: self._value(name) for name in self._table if name not in of_the_driver}
        job = Job(
            remote=self._store().to_remote(run_id, data.dataset_idx),
            data=data,
            params=params,
            run_id=run_id,
        )
        self._complete(job)
        results = backend.run(self._train_function(), args=(job.packed(),), env=job.env)
        return self._model(results[0], run_id, data.columns)

    @abstractmethod
    def _train_function(self) -> Callable[[bytes], Any]:
        """The function that ranks run on a packed job; rank 0 returns what `_model` needs."""

    @abstractmethod
    def _model(self, result: Any, run_id: str, columns: dict[str, Kind]) -> Any:
        """The model that training has made."""

    def _new_run(self) -> str:
        """A name that no run in the store has."""
        store, second = self._store(), int(time.time())
        while store.exists(store.get_run_path(f"{self._framework}_{second}")):
            second += 1
        return f"{self._framework}_{second}"

    def _complete(self, job: Job) -> None:
        """Changes the job in ways of the framework before it is packed."""

    def _check_shapes(self, columns: dict[str, Kind]) -> None:
        """Refuses shapes that do not fit the columns."""
        shapes = self._value("label_shapes") or ()
        for name, shape in zip(self._value("label_cols"), shapes):
            check_shape(name, shape, columns)

    def _names(self) -> list[str]:
        weight = self._value("sample_weight_col")
        names = [*self._value("feature_cols"), *self._value("label_cols")]
        return list(dict.fromkeys([*names, *([weight] if weight else [])]))

    def _store(self) -> Store:
        store: Store = self._value("store")
        return store

    def _backend(self) -> Backend:
        verbose = self._value("verbose")
        return self._value("backend") or SparkBackend(self._value("num_proc"), verbose=verbose)

    def _value(self, name: str) -> Any:
        return self.getOrDefault(name)


class HorovodModel(ModelParams, ReadableAndWritable, Model):
    """What the models of all frameworks have in common.

    Args:
        **options: Parameters, by name.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.setParams(**options)

    def _transform(self, dataset: Any) -> Any:
        names = list(self._value("feature_columns"))
        return inference.transformed(
            dataset,
            names,
            self._outputs(),
            self._predictor(),
            inference.Known(self._value("_metadata") or {}, list(self._value("label_columns"))),
        )

    @abstractmethod
    def _predictor(self) -> Callable[[], inference.Predict]:
        """What makes, on an executor, the function that predicts."""

    def _value(self, name: str) -> Any:
        return self.getOrDefault(name)


def check_shape(name: str, shape: Any, columns: dict[str, Kind]) -> None:
    """Refuses a shape that the rows of a column cannot have."""
    size = columns[name].size
    known = 1
    for each in shape:
        known *= each if each >= 0 else 1
    fits = size is None or size == known or (any(each < 0 for each in shape) and size % known == 0)
    if not fits:
        raise ValueError(
            f"column `{name}` has {size} numbers in a row, which do not fit the shape {list(shape)}"
        )


@contextmanager
def _described(frame: Any, text: str) -> Iterator[None]:
    """Spark shows the text beside its jobs."""
    context = getattr(frame.sparkSession, "_sc", None)
    if context is None:
        yield
        return
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", before)
