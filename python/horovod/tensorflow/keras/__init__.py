"""Horovod's API for the Keras of TensorFlow: `import horovod.tensorflow.keras as hvd`.

`tf.keras` is Keras 3 in newer TensorFlows, Keras 2 in older ones, and `tf_keras` where
`TF_USE_LEGACY_KERAS=1` asks for it; all of them work.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod._keras import optimizer as _optimizer
from horovod.common import world as _world
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.common.reductions import Average, Sum
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


def DistributedOptimizer(
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
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer with the configuration of `optimizer` that applies the gradients of all ranks.

    `backward_passes_per_step` passes are added up before they are reduced and applied.
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
    """A saved model whose optimizer, of whatever class, applies the gradients of all ranks."""
    return _optimizer.load_model(tf.keras, filepath, custom_optimizers, custom_objects, compression)
