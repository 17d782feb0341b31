"""Elastic training with TensorFlow: `hvd.elastic.run` and the states of models and variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from horovod._keras.elastic import KerasVariables
from horovod.common.arrays import from_rank_0, keep
from horovod.common.basics import _basics
from horovod.common.elastic import FrameworkState, rejoin, run_fn
from horovod.common.objects import broadcast_object
from horovod.tensorflow.util import _executing_eagerly

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]

_Result = TypeVar("_Result")


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

    return run_fn(func, rejoin, (tf.errors.OpError, RuntimeError))


class TensorFlowKerasState(KerasVariables):
    """State of a training with `tf.keras`: model, optimizer and other values.

    Each value becomes an attribute; assign new ones instead of changing lists.

    Args:
        model: A model that has been built.
        optimizer: Its optimizer (default: that of the compiled model).
        backend: Accepted for compatibility with Horovod (default: None).
        **kwargs: Other values by name, such as `batch=0`.

    Raises:
        ValueError: If the model has not been built.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(tf.keras, model, optimizer, **kwargs)


class TensorFlowState(FrameworkState):
    """State of a training with TensorFlow: variables and other values.

    Each value becomes an attribute; assign new ones instead of changing lists.

    Args:
        variables: Variables to save (default: all of the default graph).
        session: TensorFlow 1 session that holds them (default: the default session; none if
            TensorFlow executes eagerly).
        **kwargs: Other values by name, such as `batch=0`.
    """

    def __init__(
        self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        self.variables = list(tf.compat.v1.global_variables() if variables is None else variables)
        self.session = session
        self._kept: list[Any] = []
        super().__init__(broadcast_object, _basics.rank, **kwargs)
        self._kept = keep(self._values(), self._kept)

    def save(self) -> None:
        """Copy everything in memory."""
        self._kept = keep(self._values(), self._kept)
        super().save()

    def restore(self) -> None:
        """Go back to the last saved copy."""
        self._assign(self._kept)
        super().restore()

    def sync(self) -> None:
        """Give all ranks the state of rank 0, and save it."""
        values = from_rank_0(self._values(), "elastic.variable")
        super().sync()
        self._assign(values)
        self._kept = keep(values, self._kept)

    def _values(self) -> list[Any]:
        if _executing_eagerly():
            return [variable.numpy() for variable in self.variables]
        return list(self._session().run(self.variables)) if self.variables else []

    def _assign(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self.variables, values):
            if _executing_eagerly():
                variable.assign(value)
            else:
                variable.load(value, self._session())

    def _session(self) -> Any:
        session = self.session or tf.compat.v1.get_default_session()
        if session is None:
            raise ValueError("there is no session here; pass one, or make one the default")
        return session
