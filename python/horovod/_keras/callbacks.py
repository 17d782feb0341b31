"""The callbacks, as mixins for the classes of any Keras.

They average or send single numbers or whole variables outside any graph, so they use the engine on
bare arrays, and work with every backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from horovod import raw
from horovod._keras.backends import backend_of
from horovod._keras.variables import assign, is_seed, value_of, variables_of
from horovod.common.basics import _basics

_SIGNED = {np.dtype(np.uint32): np.dtype(np.int32), np.dtype(np.uint64): np.dtype(np.int64)}


class BroadcastGlobalVariables:
    """Overwrites model and optimizer with those of one rank, once, after the first batch.

    Only then do all variables exist. With JAX they are not read during training, so there the
    optimizer is built and everything is sent before it.
    """

    keras: Any
    model: Any

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local: list[Any] = []
        for variable in _as_list(local_variables):
            if not hasattr(variable, "assign"):
                raise ValueError("All local variables must be of tf.Variable type.")
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Keep a variable local to each rank.

        Args:
            var: The variable.
        """
        self._local.append(var)

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast before the first batch, with JAX.

        Args:
            logs: Logs of Keras (default: None).
        """
        if backend_of(self.keras) == "jax" and not self.broadcast_done:
            optimizer = self.model.optimizer
            if not optimizer.built:
                optimizer.build(self.model.trainable_variables)
            self._send()

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast after the first batch.

        Args:
            batch: Number of the batch.
            logs: Logs of Keras (default: None).
        """
        if not self.broadcast_done:
            self._send()

    def _send(self) -> None:
        local = {id(variable) for variable in self._local}
        found = [*self.model.variables, *variables_of(self.model.optimizer)]
        chosen = {id(variable): variable for variable in found if id(variable) not in local}
        for number, variable in enumerate(chosen.values()):
            if not is_seed(variable):
                value = value_of(self.keras, variable)
                # Unsigned integers are sent as signed ones.
                kind = _SIGNED.get(value.dtype, value.dtype)
                name = f"keras_variable.{number}"
                sent = raw.broadcast(value.view(kind), self.root_rank, name)
                assign(self.keras, variable, sent.view(value.dtype))
        self.broadcast_done = True


class MetricAverage:
    """Replaces the numbers in the logs of an epoch by their averages over all ranks."""

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Replace the numbers in the logs by their averages over all ranks.

        Args:
            epoch: Number of the epoch.
            logs: Logs of Keras (default: None).
        """
        for metric in sorted(logs or {}):
            value = np.asarray(logs[metric])
            if value.dtype.kind not in "biuf":
                continue
            average = raw.allreduce(value.astype(np.float64), f"metric.{metric}")
            logs[metric] = average if value.ndim else float(average)


class LearningRateSchedule:
    """Multiplies the learning rate by a number or a function of the epoch, in a range of epochs."""

    keras: Any
    model: Any
    params: Any

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.restore_momentum: float | None = None
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            factor = multiplier
            self.multiplier = lambda epoch: factor ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Find out how many batches an epoch has.

        Args:
            logs: Logs of Keras (default: None).
        """
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self._detected_steps()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remember the epoch.

        Args:
            epoch: Number of the epoch.
            logs: Logs of Keras (default: None).
        """
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the learning rate.

        Args:
            batch: Number of the batch.
            logs: Logs of Keras (default: None).
        """
        end = math.inf if self.end_epoch is None else self.end_epoch
        if not self.start_epoch <= self.current_epoch < end:
            return
        if self.staircase and batch == 0:
            self._adjust(self.current_epoch)
        elif not self.staircase:
            self._adjust(self.current_epoch + batch / float(self.steps_per_epoch or 1))

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Restore the momentum.

        Args:
            batch: Number of the batch.
            logs: Logs of Keras (default: None).
        """
        if self.restore_momentum is not None:
            optimizer = self.model.optimizer
            optimizer = getattr(optimizer, "inner_optimizer", optimizer)
            assign(self.keras, optimizer.momentum, self.restore_momentum)
            self.restore_momentum = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add the learning rate to the logs.

        Args:
            epoch: Number of the epoch.
            logs: Logs of Keras (default: None).
        """
        if logs is not None:
            logs["lr"] = self._rate()

    def _adjust(self, epoch: float) -> None:
        old, new = self._rate(), self.initial_lr * self.multiplier(epoch)
        assign(self.keras, self._rate_variable(), new)
        if self.momentum_correction and old and new != old:
            self._correct_momentum(new / old)

    def _correct_momentum(self, factor: float) -> None:
        """Scales past gradients, which were collected at the old rate, to the new one."""
        optimizer = self.model.optimizer
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        momentum = getattr(optimizer, "momentum", None)
        if hasattr(momentum, "assign"):
            self.restore_momentum = float(value_of(self.keras, momentum))
            assign(self.keras, momentum, self.restore_momentum * factor)
        elif momentum:
            # A plain number is compiled into the program. The velocities it is multiplied with are
            # not, so they are scaled instead: the product is the same.
            for velocity in _velocities(optimizer):
                assign(self.keras, velocity, value_of(self.keras, velocity) * factor)

    def _rate(self) -> float:
        if backend_of(self.keras) == "jax":
            # During training the values are elsewhere until they are requested.
            getattr(self.model, "jax_state_sync", _nothing)()
        return float(value_of(self.keras, self._rate_variable()))

    def _rate_variable(self) -> Any:
        rate = self.model.optimizer.learning_rate
        if not hasattr(rate, "assign"):
            raise ValueError(
                "the optimizer has its own learning rate schedule; give it a number if a "
                "callback should change it"
            )
        return rate

    def _detected_steps(self) -> int:
        known = self.params or {}
        steps, samples, batch = (known.get(key) for key in ("steps", "samples", "batch_size"))
        if steps:
            return int(steps)
        if samples and batch:
            # The key that Keras 2 uses in a TensorFlow 1 graph.
            return max(1, int(samples) // int(batch))
        raise ValueError(
            "Could not autodetect the number of steps per epoch. Please specify the "
            "steps_per_epoch parameter to the callback."
        )


class LearningRateWarmup(LearningRateSchedule):
    """Raises the learning rate from that of one rank to that of all, over some epochs.

    `initial_lr` is the learning rate for all ranks together.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # Use the end of the batch, so that the last batch has the full rate.
            epoch += 1.0 / float(self.steps_per_epoch or 1)
            size = _basics.size()
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add the learning rate to the logs, and report the end of the warm-up.

        Args:
            epoch: Number of the epoch.
            logs: Logs of Keras (default: None).
        """
        super().on_epoch_end(epoch, logs)
        is_last = self.end_epoch is not None and epoch == self.end_epoch - 1
        if is_last and self.verbose > 0 and _basics.rank() == 0:
            print(
                f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}."
            )


class PathComesLater:
    """Raises if training starts before the path is set."""

    filepath: Any

    def on_train_begin(self, logs: Any = None) -> None:
        """Check that `filepath` is set.

        Args:
            logs: Logs of Keras (default: None).

        Raises:
            ValueError: If it is not.
        """
        if self.filepath is None:
            raise ValueError(
                "BestModelCheckpoint does not know where to save; set its `filepath` before `fit`"
            )
        above: Any = super()
        above.on_train_begin(logs)


def _nothing() -> None:
    pass


def _velocities(optimizer: Any) -> Iterable[Any]:
    """The velocities that an optimizer with momentum keeps."""
    return getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or []


def _as_list(value: Any) -> Sequence[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
