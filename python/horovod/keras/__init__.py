"""Horovod's API for Keras: `import horovod.keras as hvd`.

Keras 3 works with its backends TensorFlow, torch and JAX. Functions on values (`allreduce`,
`allgather`, `broadcast`, `reducescatter`) return tensors with TensorFlow and arrays with the other
backends.
"""

from __future__ import annotations

from typing import Any, TypeVar

try:
    import keras as _keras
except ModuleNotFoundError as error:
    if error.name != "keras":
        raise
    raise ImportError(
        "horovod.keras needs Keras, which is not installed here; install it with "
        "`pip install keras`",
        name="keras",
    ) from error

from horovod._keras import optimizer as _optimizer
from horovod.common import world as _world
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.reductions import Adasum, Average, ReduceOp, Sum
from horovod.common.world import *  # noqa: F403
from horovod.keras import callbacks, elastic
from horovod.keras.compression import Compression
from horovod.keras.values import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "ReduceOp",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "elastic",
    "global_process_set",
    "load_model",
    "reducescatter",
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
    num_groups: int = 0,
    groups: Any = None,
) -> _Optimizer:
    """Wrap an optimizer so that it applies gradients reduced over all ranks.

    Args:
        optimizer: A Keras optimizer.
        name: Name of the optimizer and of its operations (default: `Distributed` and the name of
            the class).
        device_dense: Device for dense tensors, such as `/cpu:0` (default: the current device). With
            Keras on torch and JAX it has no effect.
        device_sparse: Device for `tf.IndexedSlices` (default: the current device). With Keras on
            torch and JAX it has no effect.
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).
        sparse_as_dense: Whether to reduce `tf.IndexedSlices` as dense tensors, which is faster if
            few rows are zero (default: False). With Keras on torch and JAX it has no effect.
        gradient_predivide_factor: Splits the division of an average: gradients are divided by this
            factor before the sum, and by `size / factor` after it (default: 1.0). Only with
            `op=hvd.Average`.
        op: Reduction of the gradients: `hvd.Average` or `hvd.Sum` (default: `hvd.Average`).
        num_groups: Deprecated, use `groups` (default: 0).
        groups: Variables to reduce together: a number of groups of about equal length, or lists of
            variables; variables in no list are reduced one by one. 0 or None lets the engine decide
            (default: None). With Keras on torch and JAX it has no effect.

    Returns:
        A new optimizer of the same class and configuration. It has a method `register_local_var`
        that keeps the gradient of a variable local to each rank.

    Raises:
        ValueError: If `optimizer` is not a Keras optimizer or is already wrapped, or `op` is
            neither `hvd.Average` nor `hvd.Sum`.

    Example:
        ```python
        import keras
        import numpy as np
        import horovod.keras as hvd

        hvd.init()
        model = keras.Sequential([keras.Input([10]), keras.layers.Dense(1)])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
        model.compile(optimizer, loss="mse")
        start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(np.ones([8, 10]), np.ones([8, 1]), callbacks=[start], verbose=0)
        ```
    """
    return _optimizer.create_distributed_optimizer(
        _keras,
        optimizer,
        name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        groups=groups if groups is not None else num_groups,
    )


def PartialDistributedOptimizer(
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
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> _Optimizer:
    """Wrap an optimizer so that gradients of all but some layers are reduced over all ranks.

    Args:
        optimizer: A Keras optimizer.
        name: Name of the optimizer and of its operations (default: `Distributed` and the name of
            the class).
        device_dense: Device for dense tensors, such as `/cpu:0` (default: the current device). With
            Keras on torch and JAX it has no effect.
        device_sparse: Device for `tf.IndexedSlices` (default: the current device). With Keras on
            torch and JAX it has no effect.
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).
        sparse_as_dense: Whether to reduce `tf.IndexedSlices` as dense tensors, which is faster if
            few rows are zero (default: False). With Keras on torch and JAX it has no effect.
        gradient_predivide_factor: Splits the division of an average: gradients are divided by this
            factor before the sum, and by `size / factor` after it (default: 1.0). Only with
            `op=hvd.Average`.
        op: Reduction of the gradients: `hvd.Average` or `hvd.Sum` (default: `hvd.Average`).
        backward_passes_per_step: Backward passes before each step, at least 1 (default: 1). Their
            gradients are summed locally, then reduced and applied once. More than 1 needs Keras on
            TensorFlow.
        average_aggregated_gradients: Whether to divide the gradients of several passes by their
            number (default: False).
        groups: Variables to reduce together: a number of groups of about equal length, or lists of
            variables; variables in no list are reduced one by one. 0 or None lets the engine decide
            (default: None). With Keras on torch and JAX it has no effect.
        process_set: Ranks that take part (default: all ranks). On other ranks gradients are not
            changed.
        local_layers: Layer or layers whose gradients stay local to each rank (default: None).
        scale_local_gradients: Whether to divide gradients of variables that are not reduced by the
            number of ranks, as an average would (default: True).

    Returns:
        A new optimizer of the same class and configuration. It has a method `register_local_var`
        that keeps the gradient of a variable local to each rank.

    Raises:
        ValueError: If `optimizer` is not a Keras optimizer or is already wrapped, or `op` is
            neither `hvd.Average` nor `hvd.Sum`.
        NotImplementedError: If `backward_passes_per_step` is more than 1 and Keras does not run on
            TensorFlow.
    """
    wrapped: Any = _optimizer.create_distributed_optimizer(
        _keras,
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
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    layers = local_layers if isinstance(local_layers, (list, tuple)) else [local_layers]
    for layer in layers:
        if layer is None:
            continue
        if not isinstance(layer, _keras.layers.Layer):
            raise ValueError("All local layers must be of keras.layers.Layer type.")
        for variable in layer.trainable_variables:
            wrapped.register_local_var(variable)
    distributed: _Optimizer = wrapped
    return distributed


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
    return _optimizer.load_model(_keras, filepath, custom_optimizers, custom_objects, compression)
