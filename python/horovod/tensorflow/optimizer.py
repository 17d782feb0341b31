"""Optimizers that reduce gradients over all ranks: those of TensorFlow 1.

All others are in `horovod.tensorflow.keras`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.reductions import Adasum, Average
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.reducer import GradientReducer
from horovod.tensorflow.util import _executing_eagerly

__all__ = [
    "DistributedOptimizer",
]


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):
    """Wraps a TensorFlow 1 optimizer: `compute_gradients` returns reduced gradients."""

    def __init__(
        self,
        optimizer: Any,
        name: str | None,
        use_locking: bool,
        reducer: GradientReducer,
        aggregation: LocalGradientAggregationHelper,
    ) -> None:
        super().__init__(
            name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking
        )
        self._optimizer = optimizer
        self._reducer = reducer
        self._agg_helper = aggregation
        # Whether `compute_gradients` has returned gradients that have not been applied yet.
        self._has_reduced = False

    def register_local_var(self, var: Any) -> None:
        """Keep the gradient of a variable local to each rank.

        Args:
            var: The variable.
        """
        self._reducer.register_local(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return the reduced gradients with their variables.

        Args:
            *args: Passed on to the wrapped optimizer.
            **kwargs: Passed on to the wrapped optimizer.

        Returns:
            Pairs of gradient and variable.
        """
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        if not pairs:
            return list(pairs)
        gradients, variables = zip(*pairs)
        reduced = self._agg_helper.compute_gradients(gradients, variables)
        self._has_reduced = True
        return list(zip(reduced, variables))

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Apply gradients, in every n-th pass if there are several passes per step.

        Args:
            grads_and_vars: Pairs of gradient and variable.
            *args: Passed on to the wrapped optimizer.
            **kwargs: Passed on to the wrapped optimizer.

        Returns:
            What the wrapped optimizer returns.
        """
        pairs = list(grads_and_vars)
        if pairs and not self._has_reduced:
            # They were not computed here. If the program has reduced them, an average changes
            # nothing; if not, the ranks would diverge without it.
            gradients, variables = zip(*pairs)
            pairs = list(zip(self._reducer.averaged(gradients, variables), variables))
        self._has_reduced = False
        if not self._agg_helper.has_decided:
            return self._optimizer.apply_gradients(pairs, *args, **kwargs)
        return self._agg_helper.apply_gradients(
            lambda: self._optimizer.apply_gradients(pairs, *args, **kwargs), tf.no_op
        )

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """A slot of the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """The slot names of the wrapped optimizer."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """The variables of the wrapped optimizer."""
        return self._optimizer.variables(*args, **kwargs)


_Optimizer = TypeVar("_Optimizer")


def DistributedOptimizer(
    optimizer: _Optimizer,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> _Optimizer:
    """Wrap an optimizer so that it applies gradients reduced over all ranks.

    Takes TensorFlow 1 and Keras optimizers; for the latter, `horovod.tensorflow.keras` has the same
    function. The result has a method `register_local_var` that keeps the gradient of a variable
    local to each rank.

    Args:
        optimizer: A `tf.compat.v1.train.Optimizer`, or a Keras optimizer.
        name: Name of the optimizer and of its operations (default: `Distributed` and the name of
            the class).
        use_locking: Whether to lock variables during an update; for TensorFlow 1 optimizers
            (default: False).
        device_dense: Device for dense tensors, such as `/cpu:0` (default: the current device).
        device_sparse: Device for `tf.IndexedSlices` (default: the current device).
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).
        sparse_as_dense: Whether to reduce `tf.IndexedSlices` as dense tensors, which is faster if
            few rows are zero (default: False).
        backward_passes_per_step: Backward passes before each step, at least 1 (default: 1). Their
            gradients are summed locally, then reduced and applied once.
        op: Reduction of the gradients: `hvd.Average`, `hvd.Sum` or, for TensorFlow 1 optimizers,
            `hvd.Adasum` (default: `hvd.Average`).
        gradient_predivide_factor: Splits the division of an average: gradients are divided by this
            factor before the sum, and by `size / factor` after it (default: 1.0). Only with
            `op=hvd.Average`.
        average_aggregated_gradients: Whether to divide the gradients of several passes by their
            number (default: False).
        num_groups: Deprecated, use `groups` (default: 0).
        groups: Variables to reduce together: a number of groups of about equal length, or lists of
            variables; variables in no list are reduced one by one. 0 or None lets the engine decide
            (default: None).
        process_set: Ranks that take part (default: all ranks). On other ranks gradients are not
            changed.
        scale_local_gradients: Whether to divide gradients of variables that are not reduced by the
            number of ranks, as an average would (default: True).

    Returns:
        A TensorFlow 1 optimizer around `optimizer`, or a new Keras optimizer of the same class and
        configuration.

    Raises:
        ValueError: If the optimizer is already wrapped or of the wrong type, or arguments conflict,
            such as `op=hvd.Adasum` with a Keras optimizer.
    """
    groups = groups if groups is not None else num_groups
    if isinstance(optimizer, _DistributedOptimizer):
        raise ValueError("this optimizer reduces its gradients already; it was wrapped before")
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if op == Adasum:
            raise ValueError("op == Adasum is not supported yet with Keras")
        import horovod.tensorflow.keras as hvd_keras

        return hvd_keras.DistributedOptimizer(
            optimizer,
            name,
            device_dense,
            device_sparse,
            compression,
            sparse_as_dense,
            gradient_predivide_factor,
            op,
            backward_passes_per_step,
            average_aggregated_gradients,
            0,
            groups,
            process_set,
            scale_local_gradients,
        )
    if backward_passes_per_step > 1 and _executing_eagerly():
        raise ValueError(
            "backward_passes_per_step > 1 is not supported yet with tf.compat.v1 optimizers when "
            "executing eagerly; use a Keras optimizer, or a tf.compat.v1 session"
        )
    reducer = GradientReducer(
        name or f"Distributed{type(optimizer).__name__}",
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        groups,
        process_set,
        scale_local_gradients,
    )

    def reduce(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return reducer.reduce(gradients, variables)

    aggregation = LocalGradientAggregationHelper(
        backward_passes_per_step, reduce, sparse_as_dense, average_aggregated_gradients
    )
    wrapped = _DistributedOptimizer(optimizer, name, use_locking, reducer, aggregation)
    return cast("_Optimizer", wrapped)
