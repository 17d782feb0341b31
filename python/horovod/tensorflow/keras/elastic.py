"""Elastic training with `tf.keras`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod._keras import elastic as _shared
from horovod.tensorflow.elastic import TensorFlowKerasState, run

_Callback: Any = tf.keras.callbacks.Callback

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(TensorFlowKerasState):
    """State of a training with Keras: model, optimizer and other values.

    Each value becomes an attribute; assign new ones instead of changing lists.

    Args:
        model: A model that has been built.
        optimizer: Its optimizer (default: that of the compiled model).
        **kwargs: Other values by name, such as `batch=0, epoch=0`.

    Raises:
        ValueError: If the model has not been built.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)


class CommitStateCallback(_shared.CommitState, _Callback):
    """Commit the state every few batches, and at the end of each epoch.

    Put it after the callbacks that update the state.

    Args:
        state: The state.
        batches_per_commit: Batches between commits (default: 1).
    """


class UpdateBatchStateCallback(_shared.UpdateBatchState, _Callback):
    """Keep `state.batch` up to date, and resume an epoch where it was interrupted.

    Args:
        state: The state; it needs an attribute `batch`.
    """


class UpdateEpochStateCallback(_shared.UpdateEpochState, _Callback):
    """Keep `state.epoch` up to date.

    Args:
        state: The state; it needs an attribute `epoch`.
    """
