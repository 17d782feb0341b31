"""Horovod's API for `tf.keras`: `import horovod.tensorflow.keras as hvd`.

`tf.keras` is Keras 3 in newer TensorFlow versions, Keras 2 in older ones, and `tf_keras` with
`TF_USE_LEGACY_KERAS=1`; all of them work.
"""

from __future__ import annotations

from typing import Any, TypeVar

import tensorflow as tf

from horovod._keras import optimizer as _optimizer
from horovod.common import world as _world
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.common.reductions import Average, ReduceOp, Sum
from horovod.common.world import *  # noqa: F403
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.keras import callbacks, elastic
from horovod.tensorflow.keras.values import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "ProcessSet",
    "ReduceOp",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "elastic",
    "global_process_set",
    "load_model",
    "reducescatter",
    "remove_process_set",
    *_world.__all__,
]

# The class of the returned optimizer derives from that of the argument.
_Optimizer = TypeVar("_Optimizer")


def DistributedOptimizer(
    optimizer: _Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> _Optimizer:
    """Wrap an optimizer so that it applies gradients reduced over all ranks.

    Args:
        optimizer: A Keras optimizer.
        name: Name of the optimizer and of its operations (default: `Distributed` and the name of
            the class).
        device_dense: Device for dense tensors, such as `/cpu:0` (default: the current device).
        device_sparse: Device for `tf.IndexedSlices` (default: the current device).
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).
        sparse_as_dense: Whether to reduce `tf.IndexedSlices` as dense tensors, which is faster if
            few rows are zero (default: False).
        gradient_predivide_factor: Splits the division of an average: gradients are divided by this
            factor before the sum, and by `size / factor` after it (default: 1.0). Only with
            `op=hvd.Average`.
        op: Reduction of the gradients: `hvd.Average` or `hvd.Sum` (default: `hvd.Average`).
        backward_passes_per_step: Backward passes before each step, at least 1 (default: 1). Their
            gradients are summed locally, then reduced and applied once.
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
        A new optimizer of the same class and configuration. It has a method `register_local_var`
        that keeps the gradient of a variable local to each rank.

    Raises:
        ValueError: If `optimizer` is not a Keras optimizer or is already wrapped, or `op` is
            neither `hvd.Average` nor `hvd.Sum`.

    Example:
        ```python
        import horovod.tensorflow.keras as hvd
        import tensorflow as tf

        hvd.init()
        model = tf.keras.Sequential([tf.keras.Input([10]), tf.keras.layers.Dense(1)])
        optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01 * hvd.size()))
        model.compile(optimizer, loss="mse")
        start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(tf.ones([8, 10]), tf.ones([8, 1]), callbacks=[start], verbose=0)
        ```
    """
    return _optimizer.create_distributed_optimizer(
        tf.keras,
        optimizer,
        name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups if groups is not None else num_groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a saved model and wrap its optimizer, so that training continues with all ranks.

    The state of the optimizer is kept.

    Args:
        filepath: Path of the saved model.
        custom_optimizers: Optimizer classes of your own that the model may use (default: None).
        custom_objects: Other classes and functions that the model uses, by name (default: None).
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).
        legacy_opts: Accepted for compatibility with Horovod (default: False).

    Returns:
        The model.

    Raises:
        ValueError: If the model cannot be loaded, as `keras.models.load_model` raises it.
    """
    return _optimizer.load_model(tf.keras, filepath, custom_optimizers, custom_objects, compression)
