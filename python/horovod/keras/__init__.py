"""Horovod's API for Keras: `import horovod.keras as hvd`.

Keras 3 works with its backends TensorFlow, torch and JAX. What takes values (`allreduce`,
`allgather`, `broadcast`, `reducescatter`) gives tensors with TensorFlow and arrays with the others.
"""

from __future__ import annotations

from typing import Any

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
from horovod.common.reductions import Adasum, Average, Sum
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


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Any = None,
) -> Any:
    """An optimizer configured like `optimizer` that applies the gradients of all ranks."""
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
    optimizer: Any,
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
) -> Any:
    """Such an optimizer that leaves the gradients of some layers as they are on each rank."""
    wrapped = _optimizer.create_distributed_optimizer(
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
    return wrapped


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """A saved model whose optimizer, of whatever class, applies the gradients of all ranks."""
    return _optimizer.load_model(_keras, filepath, custom_optimizers, custom_objects, compression)
