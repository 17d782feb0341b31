"""The callbacks of `horovod.keras`, for `model.fit`."""

from __future__ import annotations

from typing import Any

import keras

from horovod._keras import callbacks as _shared

_Callback: Any = keras.callbacks.Callback
_ModelCheckpoint: Any = keras.callbacks.ModelCheckpoint

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(_shared.BroadcastGlobalVariables, _Callback):
    """Overwrites model and optimizer with those of one rank, once, behind the first batch."""

    keras = keras


class MetricAverageCallback(_shared.MetricAverage, _Callback):
    """Averages the metrics of an epoch over all ranks; comes before callbacks that look at them."""

    keras = keras


class LearningRateScheduleCallback(_shared.LearningRateSchedule, _Callback):
    """Multiplies the learning rate in a range of epochs."""

    keras = keras


class LearningRateWarmupCallback(_shared.LearningRateWarmup, _Callback):
    """Raises the learning rate gradually at the beginning."""

    keras = keras


class BestModelCheckpoint(_shared.PathComesLater, _ModelCheckpoint):
    """Saves the best model; `filepath` is set later, before training starts."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        super().__init__(
            filepath="best.keras",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=False,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: Any = None
