"""`KerasEstimator`, and the `KerasModel` that it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from horovod.spark.common import datamodule
from horovod.spark.common.columns import Kind
from horovod.spark.common.estimator import HorovodEstimator, HorovodModel
from horovod.spark.common.inference import Predict
from horovod.spark.common.job import Job
from horovod.spark.common.options import constructor, with_options
from horovod.spark.keras import params
from horovod.spark.keras.prediction import KerasPredictor
from horovod.spark.keras.saved import KerasName, SavedModel, SavedOptimizer

__all__ = [
    "KerasEstimator",
    "KerasModel",
]


@constructor(params.ESTIMATOR_ORDER)
@with_options(params.ESTIMATOR)
class KerasEstimator(HorovodEstimator):
    """Trains a Keras model on a Spark DataFrame, on all ranks of the cluster.

    The model is one of Keras 3, with any of its backends, or of Keras 2 (`tf_keras`). It has an
    input for each feature column and an output for each label column. The learning rate is
    multiplied by the number of ranks during training.

    Args:
        **options: Parameters by name, such as `model`, `optimizer`, `loss`, `store`,
            `feature_cols`, `label_cols`, `num_proc`, `batch_size`, `epochs` and `validation`; the
            guide describes all. Each has a `setX` and `getX`.

    Raises:
        TypeError: If there is no parameter of a name.
        ValueError: When it is fitted, if parameters are missing or contradict each other.
    """

    _framework = "keras"

    def _check(self) -> None:
        super()._check()
        datamodule.check(self._value("data_module"))
        if self._optimizer() is None or self._loss() is None:
            raise ValueError("optimizer and loss are required, unless the model is compiled")
        passes = self._value("backward_passes_per_step")
        backend = KerasName.of(self._value("model")).backend
        if passes > 1 and backend != "tensorflow":
            raise ValueError(
                f"backward_passes_per_step is {passes}, which Keras on {backend} cannot do; give "
                "its optimizer gradient_accumulation_steps"
            )

    def _complete(self, job: Job) -> None:
        saved = SavedModel.of(self._value("model"), self._value("custom_objects"))
        ahead = self._value("tensorflow_dataset_prefetch_buffer_size")
        workers = max(self._value("train_reader_num_workers"), -(-ahead // 4))
        job.params.update(
            model=saved,
            optimizer=SavedOptimizer.of(self._optimizer(), self._value("custom_objects")),
            loss=self._loss(),
            train_reader_num_workers=workers,
        )
        job.env = {**(self._value("backend_env") or {}), **saved.name.variables}

    def _optimizer(self) -> Any:
        given = self._value("optimizer")
        return getattr(self._value("model"), "optimizer", None) if given is None else given

    def _loss(self) -> Any:
        given = self._value("loss")
        return getattr(self._value("model"), "loss", None) if given is None else given

    def _train_function(self) -> Callable[[bytes], Any]:
        from horovod.spark.keras.training import train

        return train

    def _model(self, result: Any, run_id: str, columns: Mapping[str, Kind]) -> KerasModel:
        saved: SavedModel = result["model"]
        model = saved.load()
        optimizer = SavedOptimizer.of(self._optimizer(), self._value("custom_objects")).load()
        model.compile(
            optimizer=optimizer,
            loss=self._loss(),
            loss_weights=self._value("loss_weights"),
            metrics=self._value("metrics") or None,
        )
        return KerasModel(
            history=result["history"],
            model=model,
            feature_columns=self._value("feature_cols"),
            label_columns=self._value("label_cols"),
            custom_objects=self._value("custom_objects"),
            run_id=run_id,
            _metadata=dict(columns),
            _floatx=saved.name.load().backend.floatx(),
        )

    def _packed(self, name: str, value: Any) -> Any:
        return _packed(name, value, self._value("custom_objects"))

    def _unpacked(self, name: str, value: Any) -> Any:
        return value.load() if isinstance(value, (SavedModel, SavedOptimizer)) else value


@constructor(params.MODEL_ORDER)
@with_options(params.MODEL)
class KerasModel(HorovodModel):
    """A Keras model that predicts columns of a DataFrame.

    `transform` adds a column `LABEL__output` for each label column.

    Args:
        **options: Parameters by name: `history`, `model`, `feature_columns`, `label_columns`,
            `custom_objects`, `run_id`, `output_cols`.

    Raises:
        TypeError: If there is no parameter of a name.
    """

    def _predictor(self) -> Callable[[], Predict]:
        saved = SavedModel.of(self._value("model"), self._value("custom_objects"))
        return KerasPredictor(saved, self._value("_floatx"))

    def _packed(self, name: str, value: Any) -> Any:
        return _packed(name, value, self._value("custom_objects"))

    def _unpacked(self, name: str, value: Any) -> Any:
        return value.load() if isinstance(value, SavedModel) else value


def _packed(name: str, value: Any, custom_objects: Any) -> Any:
    if value is None or name not in ("model", "optimizer"):
        return value
    return (SavedModel if name == "model" else SavedOptimizer).of(value, custom_objects)
