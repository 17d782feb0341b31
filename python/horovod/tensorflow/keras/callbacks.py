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
    """Overwrite model and optimizer with those of one rank, so that all ranks start equal.

    It does so once: after the first batch, when all variables exist, or on JAX before it.

    Args:
        root_rank: Rank that sends.
        device: Accepted for compatibility with Horovod (default: the current device).
        local_variables: Variables that stay local to each rank (default: None).

    Raises:
        ValueError: If `local_variables` are not variables.
    """

    keras = tf.keras


class MetricAverageCallback(_shared.MetricAverage, _Callback):
    """Average the metrics of each epoch over all ranks.

    Put it before callbacks that use metrics, such as checkpoints and early stopping.

    Args:
        device: Accepted for compatibility with Horovod (default: the current device).
    """

    keras = tf.keras


class LearningRateScheduleCallback(_shared.LearningRateSchedule, _Callback):
    """Multiply the learning rate by a factor in a range of epochs.

    Use several for several ranges.

    Args:
        initial_lr: Learning rate that is multiplied.
        multiplier: Factor, raised to the power of the epochs since `start_epoch`; or a function of
            the epoch that returns the factor.
        start_epoch: First epoch of the range (default: 0).
        end_epoch: First epoch after the range (default: none).
        staircase: Whether to change the rate only at the start of an epoch, and not at each batch
            (default: True).
        momentum_correction: Whether to correct momentum when the rate changes (default: True).
        steps_per_epoch: Batches in an epoch (default: detected). Only used if `staircase` is
            False.

    Raises:
        ValueError: If `initial_lr` is None.
    """

    keras = tf.keras


class LearningRateWarmupCallback(_shared.LearningRateWarmup, _Callback):
    """Raise the learning rate gradually from that of one rank to that of all.

    A large learning rate at the start often spoils training with many ranks.

    Args:
        initial_lr: Learning rate after the warm-up, commonly that of one rank times `hvd.size()`.
        warmup_epochs: Length of the warm-up in epochs (default: 5).
        momentum_correction: Whether to correct momentum when the rate changes (default: True).
        steps_per_epoch: Batches in an epoch (default: detected).
        verbose: 1 to have rank 0 print a line when the warm-up is done (default: 0).
    """

    keras = tf.keras


class BestModelCheckpoint(_shared.PathComesLater, _ModelCheckpoint):
    """Save the best model so far; set its `filepath` before training starts.

    Args:
        monitor: Metric that decides what is best (default: `val_loss`).
        verbose: 1 to print a line when a model is saved (default: 0).
        save_weights_only: Whether to save only the weights (default: False).
        mode: `min`, `max`, or `auto` to guess from the metric (default: `auto`).
        save_freq: `epoch`, or a number of batches (default: `epoch`).

    Raises:
        ValueError: When training starts, if `filepath` is not set.
    """

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
