"""Accumulates gradients over several passes before they are reduced and applied.

The sums and the count are variables, so this works in a graph, in a traced function and eagerly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class LocalGradientAggregationHelper:
    """Passes on reduced gradients in every n-th pass; in the others it only accumulates them."""

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
    ) -> None:
        if backward_passes_per_step <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self.backward_passes_per_step = backward_passes_per_step
        self._reduce = allreduce_func
        self._sparse_as_dense = sparse_as_dense
        self._average = average_aggregated_gradients
        self.counter: Any = None
        self._sums: list[Any] = []
        self._lets_through: Any = None

    @property
    def has_decided(self) -> bool:
        """Whether `compute_gradients` has decided which pass applies gradients."""
        return self._lets_through is not None

    def compute_gradients(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the reduced sums in every n-th pass; otherwise zeros, which must not be
        applied."""
        if self.backward_passes_per_step == 1:
            return self._reduce(gradients, variables)
        gradients = [self._dense(gradient) for gradient in gradients]
        self._make_room(gradients)
        present = [position for position, each in enumerate(gradients) if each is not None]
        added = [
            self._sums[position].assign_add(gradients[position], read_value=False)
            for position in present
        ]
        with tf.control_dependencies(_ops(added)):
            count = self.counter.assign_add(1)
        chosen = [variables[position] for position in present]
        self._lets_through = tf.equal(count, self.backward_passes_per_step)
        reduced = tf.cond(
            self._lets_through,
            lambda: self._let_through(present, chosen),
            lambda: [tf.zeros_like(self._sums[position]) for position in present],
        )
        results: list[Any] = [None] * len(gradients)
        for position, gradient in zip(present, reduced):
            results[position] = gradient
        return results

    def apply_gradients(self, apply: Callable[[], Any], done: Callable[[], Any]) -> Any:
        """Applies gradients in every n-th pass, and calls `done` in the others."""
        if self.backward_passes_per_step == 1:
            return apply()
        return tf.cond(self._lets_through, apply, done)

    def _dense(self, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not self._sparse_as_dense:
            raise ValueError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and "
                "`sparse_as_dense` is False."
            )
        return tf.convert_to_tensor(gradient)

    def _make_room(self, gradients: Sequence[Any]) -> None:
        if self.counter is not None:
            return
        # Variables of a traced function must be created outside it, and only once.
        with contextlib.nullcontext() if _in_old_graph() else tf.init_scope():
            self.counter = _variable(tf.zeros([], tf.int32), "aggregation_counter")
            for number, gradient in enumerate(gradients):
                room = None
                if gradient is not None:
                    zeros = tf.zeros(gradient.shape, gradient.dtype)
                    room = _variable(zeros, f"aggregated_gradient_{number}")
                self._sums.append(room)

    def _let_through(self, present: list[int], variables: list[Any]) -> list[Any]:
        sums = [self._sums[position].read_value() for position in present]
        if self._average:
            sums = [each / tf.cast(self.backward_passes_per_step, each.dtype) for each in sums]
        reduced = self._reduce(sums, variables)
        with tf.control_dependencies(reduced):
            cleared = [
                self._sums[position].assign(tf.zeros_like(self._sums[position]), read_value=False)
                for position in present
            ]
            cleared.append(self.counter.assign(0, read_value=False))
        with tf.control_dependencies(_ops(cleared)):
            return [tf.identity(each) for each in reduced]


def _variable(initial: Any, name: str) -> Any:
    if _in_old_graph():
        # Such programs initialize variables in collections; these are not part of the model.
        kinds = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES, tf.compat.v1.GraphKeys.GLOBAL_VARIABLES]
        return tf.compat.v1.Variable(
            initial, trainable=False, name=name, collections=kinds, use_resource=True
        )
    return tf.Variable(initial, trainable=False, name=name)


def _in_old_graph() -> bool:
    """Whether this is a TensorFlow 1 graph, which has no outer graph."""
    return not tf.compat.v1.executing_eagerly_outside_functions()


def _ops(assignments: Sequence[Any]) -> list[Any]:
    return [each for each in assignments if each is not None]
