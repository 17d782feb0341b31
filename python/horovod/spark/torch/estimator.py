"""`TorchEstimator`, and the `TorchModel` that it makes."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping
from typing import Any

import torch

from horovod.spark.common.columns import Kind
from horovod.spark.common.estimator import HorovodEstimator, HorovodModel, check_shape
from horovod.spark.common.inference import Predict
from horovod.spark.common.job import Job
from horovod.spark.common.options import constructor, with_options
from horovod.spark.torch import params
from horovod.spark.torch.attach import attach
from horovod.spark.torch.prediction import TorchPredictor

__all__ = [
    "TorchEstimator",
    "TorchModel",
]


@constructor(params.ESTIMATOR_ORDER)
@with_options(params.ESTIMATOR)
class TorchEstimator(HorovodEstimator):
    """Trains a PyTorch model on a Spark DataFrame, on all ranks of the cluster.

    The model gets a tensor for each feature column and returns one for each label column. The
    learning rate is multiplied by the number of ranks during training.

    Args:
        **options: Parameters by name, such as `model`, `optimizer`, `loss`, `store`,
            `feature_cols`, `label_cols`, `num_proc`, `batch_size`, `epochs` and `validation`; the
            guide describes all. Each has a `setX` and `getX`.

    Raises:
        TypeError: If there is no parameter of a name.
        ValueError: When it is fitted, if parameters are missing or contradict each other.

    Example:
        ```python
        import torch
        from horovod.spark.common.store import Store
        from horovod.spark.torch import TorchEstimator

        model = torch.nn.Linear(2, 1)
        estimator = TorchEstimator(
            num_proc=4,
            store=Store.create("/tmp/experiments"),
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
            loss=torch.nn.MSELoss(),
            feature_cols=["x"],
            label_cols=["y"],
            epochs=2,
        )
        assert estimator.getEpochs() == 2
        ```
    """

    _framework = "pytorch"

    def _check(self) -> None:
        params.check(self)
        super()._check()
        without_loss = self._value("train_minibatch_fn") and not self._value("validation")
        given = self._value("loss") is not None or self._value("loss_constructors")
        if not given and not without_loss:
            raise ValueError("loss is required, such as torch.nn.functional.mse_loss")
        if not isinstance(self._value("optimizer"), torch.optim.Optimizer):
            raise ValueError(
                "optimizer is required, such as torch.optim.SGD(model.parameters(), lr=0.01)"
            )

    def _check_shapes(self, columns: dict[str, Kind]) -> None:
        super()._check_shapes(columns)
        for name, shape in zip(self._value("feature_cols"), self._value("input_shapes") or ()):
            check_shape(name, shape, columns)

    def _complete(self, job: Job) -> None:
        job.feature_shapes = self._value("input_shapes")

    def _train_function(self) -> Callable[[bytes], Any]:
        from horovod.spark.torch.training import train

        return train

    def _model(self, result: Any, run_id: str, columns: Mapping[str, Kind]) -> TorchModel:
        states = torch.load(io.BytesIO(result["states"]), map_location="cpu", weights_only=True)
        # Copied together, so that the optimizer's parameters are those of the model.
        model, optimizer = copy.deepcopy((self._value("model"), self._value("optimizer")))
        attach(optimizer, model.cpu())
        model.load_state_dict(states["model"])
        optimizer.load_state_dict(states["optimizer"])
        return TorchModel(
            history=states["history"],
            model=model,
            feature_columns=self._value("feature_cols"),
            input_shapes=self._value("input_shapes"),
            label_columns=self._value("label_cols"),
            optimizer=optimizer,
            run_id=run_id,
            _metadata=dict(columns),
            loss=self._value("loss"),
            loss_constructors=self._value("loss_constructors"),
        )


@constructor(params.MODEL_ORDER)
@with_options(params.MODEL)
class TorchModel(HorovodModel):
    """A PyTorch model that predicts columns of a DataFrame.

    `transform` adds a column `LABEL__output` for each label column.

    Args:
        **options: Parameters by name: `history`, `model`, `feature_columns`, `input_shapes`,
            `label_columns`, `optimizer`, `run_id`, `loss`, `loss_constructors`, `output_cols`.

    Raises:
        TypeError: If there is no parameter of a name.
    """

    def _predictor(self) -> Callable[[], Predict]:
        return TorchPredictor(self._value("model"), self._value("input_shapes"))
