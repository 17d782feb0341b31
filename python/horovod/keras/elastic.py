"""Elastic training with Keras, on any of its backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import keras

from horovod._keras import elastic as _shared
from horovod._keras.backends import backend_of
from horovod.common.elastic import rejoin, run_fn

_Callback: Any = keras.callbacks.Callback
_Result = TypeVar("_Result")

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


def run(func: Callable[..., _Result]) -> Callable[..., _Result]:
    """Makes a function of a state, and what else it takes, one that outlives its world.

    When a rank is lost, or hosts come or go, the function is called again, in the next world, with
    the state of rank 0. Nothing may be sent between ranks before the first call.
    """
    if backend_of(keras) == "tensorflow":
        from horovod.tensorflow import elastic

        return elastic.run(func)
    if backend_of(keras) == "jax":
        from horovod.jax import elastic as of_jax

        return of_jax.run(func)
    return run_fn(func, rejoin)


class KerasState(_shared.KerasVariables):
    """A model that has been built, its optimizer, and values such as the epoch."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(keras, model, optimizer, **kwargs)


class CommitStateCallback(_shared.CommitState, _Callback):
    """Commits every so many batches, and at the end of each epoch; comes behind those below."""


class UpdateBatchStateCallback(_shared.UpdateBatchState, _Callback):
    """Keeps `state.batch`, and takes an epoch up where it was interrupted."""


class UpdateEpochStateCallback(_shared.UpdateEpochState, _Callback):
    """Keeps `state.epoch`."""
