"""Elastic training with Keras: the state of model and optimizer, and callbacks for `fit`.

It works with any Keras. Variables are copied and sent as arrays outside any graph, so every backend
works.
"""

from __future__ import annotations

from typing import Any

from horovod._keras.backends import backend_of, is_keras_3
from horovod._keras.variables import assign, is_seed, seen, variables_of
from horovod.common.arrays import from_rank_0, keep
from horovod.common.basics import _basics
from horovod.common.elastic import FrameworkState
from horovod.common.objects import broadcast_object


class KerasVariables(FrameworkState):
    """A model that has been built, its optimizer, and values such as the epoch."""

    def __init__(self, keras: Any, model: Any, optimizer: Any, **kwargs: Any) -> None:
        if not model.built:
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        own = getattr(model, "optimizer", None)
        self.optimizer: Any = optimizer if optimizer is not None else own
        self._keras = keras
        self._size = _basics.size()
        self._kept: list[Any] = []
        super().__init__(broadcast_object, _basics.rank, **kwargs)
        self._keep()

    def save(self) -> None:
        """Copy everything in memory."""
        self._keep()
        super().save()

    def restore(self) -> None:
        """Go back to the last saved copy."""
        # Unfinished values that a JAX training loop holds must not be read any more.
        if hasattr(self.model, "_jax_state_synced"):
            self.model._jax_state_synced = True
        for variable, value in zip(self._variables(), self._kept):
            assign(self._keras, variable, value)
        super().restore()

    def sync(self) -> None:
        """Give all ranks the state of rank 0, and save it."""
        variables = [each for each in self._variables() if not is_seed(each)]
        values = from_rank_0([self._seen(each) for each in variables], "elastic.variable")
        super().sync()
        for variable, value in zip(variables, values):
            assign(self._keras, variable, value)
        self._keep()

    def reset(self) -> None:
        """Makes JAX recompile programs for the new number of ranks."""
        if backend_of(self._keras) == "jax" and self._size != _basics.size():
            from horovod.jax.elastic import forget_programs

            forget_programs()
        self._size = _basics.size()

    def _keep(self) -> None:
        # During training, JAX keeps the values elsewhere.
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        self._kept = keep([self._seen(each) for each in self._variables()], self._kept)

    def _variables(self) -> list[Any]:
        found = list(self.model.variables)
        if self.optimizer is not None:
            self._build()
            found.extend(variables_of(self.optimizer))
        return list({id(variable): variable for variable in found}.values())

    def _build(self) -> None:
        """Creates the optimizer's variables: a new rank needs them before its first step."""
        trained = self.model.trainable_variables
        if hasattr(self.optimizer, "build"):
            # Keras 2 has the same under a private name.
            if not getattr(self.optimizer, "built", getattr(self.optimizer, "_built", False)):
                self.optimizer.build(trained)
        elif not is_keras_3(self._keras):
            self.optimizer._create_all_weights(trained)

    def _seen(self, variable: Any) -> Any:
        return seen(self._keras, variable)


class CommitState:
    """Commits every few batches, and at the end of each epoch.

    It does not commit after the last batch, but at the end of the epoch, when the epoch counts as
    done: from a commit between the two, `fit` could not continue without another batch.
    """

    params: Any

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Start counting batches.

        Args:
            logs: Logs of Keras (default: None).
        """
        self._left = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit if it is time.

        Args:
            batch: Number of the batch.
            logs: Logs of Keras (default: None).
        """
        self._left -= 1
        if self._left == 0:
            self._left = self.batches_per_commit
            done = getattr(self.state, "batch", batch + 1)
            if done != (self.params or {}).get("steps"):
                self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit the state.

        Args:
            epoch: Number of the epoch.
            logs: Logs of Keras (default: None).
        """
        self.state.commit()


class UpdateBatchState:
    """Keeps `state.batch`: how many batches of the epoch are done.

    An interrupted epoch resumes where it was, so it then has fewer batches.
    """

    model: Any
    params: Any

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._done_before = 0
        self._stops = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Remember where the epoch was interrupted.

        Args:
            logs: Logs of Keras (default: None).
        """
        self._done_before = self.state.batch

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the batch, and end an epoch that was resumed.

        Args:
            batch: Number of the batch.
            logs: Logs of Keras (default: None).
        """
        self.state.batch = self._done_before + batch + 1
        steps = (self.params or {}).get("steps")
        if self._done_before and steps and self.state.batch >= steps and batch + 1 < steps:
            # This ends the loop over the batches; the end of the epoch comes next.
            self.model.stop_training = self._stops = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Start counting batches again.

        Args:
            epoch: Number of the epoch.
            logs: Logs of Keras (default: None).
        """
        if self._stops:
            self.model.stop_training = self._stops = False
        self._done_before = self.state.batch = 0


class UpdateEpochState:
    """Keeps `state.epoch`: how many epochs are done, over all calls of `fit`."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._done_before = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Remember how many epochs are done.

        Args:
            logs: Logs of Keras (default: None).
        """
        self._done_before = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Count the epoch.

        Args:
            epoch: Number of the epoch.
            logs: Logs of Keras (default: None).
        """
        self.state.epoch = self._done_before + epoch + 1
