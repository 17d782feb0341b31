"""Lightning's `TorchEstimator`, and the `TorchModel` that it makes."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import lightning.pytorch as pl
import torch

from horovod.spark.common.columns import Kind
from horovod.spark.common.inference import Predict
from horovod.spark.common.job import Job
from horovod.spark.common.options import constructor, with_options
from horovod.spark.lightning import params
from horovod.spark.torch import params as torch_params
from horovod.spark.torch.estimator import TorchEstimator as _WithoutLightning
from horovod.spark.torch.estimator import TorchModel as _ModelWithoutLightning

__all__ = [
    "MIN_PL_VERSION",
    "TorchEstimator",
    "TorchModel",
]

MIN_PL_VERSION = "2.2.0"
"""The oldest Lightning that works."""


@constructor(params.ESTIMATOR_ORDER)
@with_options(params.ESTIMATOR)
class TorchEstimator(_WithoutLightning):
    """Trains a Lightning module on a Spark DataFrame, on all ranks of the cluster.

    Batches are dicts of tensors, by column. A plain torch module works as well, with `optimizer`
    and `loss`. The learning rate is multiplied by the number of ranks during training.

    Args:
        **options: Parameters by name, such as `model`, `store`, `feature_cols`, `label_cols`,
            `num_proc`, `batch_size`, `epochs` and `validation`; the guide describes all. Each has a
            `setX` and `getX`.

    Raises:
        TypeError: If there is no parameter of a name.
        ValueError: When it is fitted, if parameters are missing or contradict each other.
        RuntimeError: When it is fitted, if Lightning is too old.
    """

    def _check(self) -> None:
        _check_version(version("lightning"))
        model = self._value("model")
        if any(each.__module__.startswith("pytorch_lightning.") for each in type(model).__mro__):
            raise ValueError(
                "the model is a module of the package pytorch_lightning; derive it from "
                "lightning.pytorch.LightningModule"
            )
        if self._value("train_minibatch_fn") is not None:
            raise ValueError("train_minibatch_fn has no place here; write a training_step")
        if not isinstance(model, pl.LightningModule):
            super()._check()
            return
        given = [name for name in ("optimizer", "loss", "loss_weights") if self._value(name)]
        if given:
            raise ValueError(
                f"{' and '.join(given)} belong into the LightningModule: its training_step and "
                "configure_optimizers; leave them out of the estimator"
            )
        torch_params.check(self)
        super(_WithoutLightning, self)._check()

    def _complete(self, job: Job) -> None:
        super()._complete(job)
        for part in ("train", "val"):
            queue = self._value(f"{part}_async_data_loader_queue_size")
            if queue is not None:
                job.params[f"{part}_reader_num_workers"] = -(-queue // 4)

    def _train_function(self) -> Callable[[bytes], Any]:
        from horovod.spark.lightning.training import train

        return train

    def _model(self, result: Any, run_id: str, columns: Mapping[str, Kind]) -> TorchModel:
        model, optimizer = copy.deepcopy((self._value("model"), self._value("optimizer")))
        model.load_state_dict(torch.load(io.BytesIO(result["state"]), weights_only=True))
        return TorchModel(
            history=result["history"],
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


class TorchModel(_ModelWithoutLightning):
    """A Lightning module that predicts columns of a DataFrame.

    `transform` adds a column `LABEL__output` for each label column.

    Args:
        **options: Parameters by name: `history`, `model`, `feature_columns`, `input_shapes`,
            `label_columns`, `optimizer`, `run_id`, `loss`, `loss_constructors`, `output_cols`.

    Raises:
        TypeError: If there is no parameter of a name.
    """

    def get_prediction_fn(self) -> Predict:
        """Return what predicts outside Spark.

        Returns:
            A function of a list with an array for each feature, which returns one for each label.
        """
        return self._predictor()()


def _check_version(found: str) -> None:
    numbers = [int(part) for part in found.split(".")[:2]]
    if numbers < [int(part) for part in MIN_PL_VERSION.split(".")[:2]]:
        raise RuntimeError(f"Lightning {found} is too old; install {MIN_PL_VERSION} or newer")
