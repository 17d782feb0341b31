"""Elastic training with the Keras of TensorFlow."""

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
    """A model that has been built, its optimizer, and values such as the epoch."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)


class CommitStateCallback(_shared.CommitState, _Callback):
    """Commits every so many batches, and at the end of each epoch; comes behind those below."""


class UpdateBatchStateCallback(_shared.UpdateBatchState, _Callback):
    """Keeps `state.batch`, and takes an epoch up where it was interrupted."""


class UpdateEpochStateCallback(_shared.UpdateEpochState, _Callback):
    """Keeps `state.epoch`."""
