"""Optimizers whose gradients are those of all ranks: those of TensorFlow 1 here, all others in
`horovod.tensorflow.keras`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.reductions import Adasum, Average
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.reducer import GradientReducer
from horovod.tensorflow.util import _executing_eagerly


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):
    """Wraps an optimizer of TensorFlow 1: `compute_gradients` gives the gradients of all ranks."""

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
        # Whether gradients have been computed here that have not been applied yet.
        self._has_reduced = False

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable is not reduced."""
        self._reducer.register_local(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The gradients of all ranks, with their variables."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        if not pairs:
            return list(pairs)
        gradients, variables = zip(*pairs)
        reduced = self._agg_helper.compute_gradients(gradients, variables)
        self._has_reduced = True
        return list(zip(reduced, variables))

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies gradients, in the passes that let them through."""
        pairs = list(grads_and_vars)
        if pairs and not self._has_reduced:
            # They were not computed here. If the program has reduced them, an average changes
            # nothing; if it has not, the ranks would go apart without one.
            gradients, variables = zip(*pairs)
            pairs = list(zip(self._reducer.averaged(gradients, variables), variables))
        self._has_reduced = False
        if not self._agg_helper.has_decided:
            return self._optimizer.apply_gradients(pairs, *args, **kwargs)
        return self._agg_helper.apply_gradients(
            lambda: self._optimizer.apply_gradients(pairs, *args, **kwargs), tf.no_op
        )

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.variables(*args, **kwargs)


def DistributedOptimizer(
    optimizer: Any,
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
) -> Any:
    """An optimizer like `optimizer` that applies the gradients of all ranks."""
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
            "executing eagerly; use an optimizer of Keras, or a session of tf.compat.v1"
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
    return _DistributedOptimizer(optimizer, name, use_locking, reducer, aggregation)
