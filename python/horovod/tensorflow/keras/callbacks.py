"""The callbacks of `horovod.tensorflow.keras`, for `model.fit`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod._keras import callbacks as _shared

_Callback: Any = tf.keras.callbacks.Callback
_ModelCheckpoint: Any = tf.keras.callbacks.ModelCheckpoint

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(_shared.BroadcastGlobalVariables, _Callback):
    """Overwrites model and optimizer with those of one rank, once, behind the first batch."""

    keras = tf.keras


class MetricAverageCallback(_shared.MetricAverage, _Callback):
    """Averages the metrics of an epoch over all ranks; comes before callbacks that look at them."""

    keras = tf.keras


class LearningRateScheduleCallback(_shared.LearningRateSchedule, _Callback):
    """Multiplies the learning rate in a range of epochs."""

    keras = tf.keras


class LearningRateWarmupCallback(_shared.LearningRateWarmup, _Callback):
    """Raises the learning rate gradually at the beginning."""

    keras = tf.keras


class BestModelCheckpoint(_shared.PathComesLater, _ModelCheckpoint):
    """Saves the best model; `filepath` is set later, before training starts."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        super().__init__(
            filepath="best.keras",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: Any = None
