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
    """Makes a function of a state, and what else it takes, one that outlives its world.

    When a rank is lost, or hosts come or go, the function is called again, in the next world, with
    the state of rank 0. Nothing may be sent between ranks before the first call.
    """

    return run_fn(func, rejoin, (tf.errors.OpError, RuntimeError))


class TensorFlowKerasState(KerasVariables):
    """A model of Keras that has been built, its optimizer, and values such as the epoch.

    `backend` is taken for Horovod's sake.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(tf.keras, model, optimizer, **kwargs)


class TensorFlowState(FrameworkState):
    """Variables, and values such as the epoch; all variables of the graph in a session."""

    def __init__(
        self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        self.variables = list(tf.compat.v1.global_variables() if variables is None else variables)
        self.session = session
        self._kept: list[Any] = []
        super().__init__(broadcast_object, _basics.rank, **kwargs)
        self._kept = keep(self._values(), self._kept)

    def save(self) -> None:
        """Keeps a copy of all variables and values."""
        self._kept = keep(self._values(), self._kept)
        super().save()

    def restore(self) -> None:
        """Gives the variables and values what was kept last."""
        self._assign(self._kept)
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the variables and the values of rank 0."""
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
