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
    """Make a training function elastic, so that it survives lost ranks and changing hosts.

    When a rank is lost, or hosts are added or removed, the remaining ranks regroup without a
    restart and call the function again with the state of rank 0, which returns to the last
    `state.commit()` if a rank was lost. Do not call collectives before the first call.

    Args:
        func: Function whose first argument is a state; it returns when training is done.

    Returns:
        A function that takes a state and the other arguments of `func`, and returns what `func`
        returns.
    """
    if backend_of(keras) == "tensorflow":
        from horovod.tensorflow import elastic

        return elastic.run(func)
    if backend_of(keras) == "jax":
        from horovod.jax import elastic as of_jax

        return of_jax.run(func)
    return run_fn(func, rejoin)


class KerasState(_shared.KerasVariables):
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
        super().__init__(keras, model, optimizer, **kwargs)


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
