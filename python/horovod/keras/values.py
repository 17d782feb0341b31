"""Collectives on plain values, as programs of Keras use them.

With TensorFlow tensors come back, as from `horovod.tensorflow.keras`; with torch and JAX arrays of
NumPy do.
"""

from __future__ import annotations

import importlib
from typing import Any

import keras
import numpy as np

from horovod import raw
from horovod._keras.backends import backend_of
from horovod.common.compression import checked
from horovod.common.reductions import Average, handle_average_backwards_compatibility
from horovod.keras.compression import Compression


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """The reduction of the values of all ranks: their average unless `average` is false.

    `average=None` must be given along with `op`, as in Horovod.
    """
    if average is True and op is None:
        op, average = Average, None
    op = handle_average_backwards_compatibility(op, average)
    factors = (prescale_factor, postscale_factor)
    tensors = _of_tensorflow()
    if tensors is not None:
        return tensors.allreduce(value, name, None, *factors, op, compression)
    if checked(compression) is Compression.none:
        return raw.allreduce(np.asarray(value), name, op, *factors)
    hvd: Any = importlib.import_module(f"horovod.{backend_of(keras)}")
    small, context = compression.compress(keras.ops.convert_to_tensor(np.asarray(value)))
    reduced = hvd.allreduce(
        small, op=op, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor
    )
    return keras.ops.convert_to_numpy(compression.decompress(reduced, context))


def allgather(value: Any, name: str | None = None) -> Any:
    """The values of all ranks, one behind the other."""
    tensors = _of_tensorflow()
    if tensors is not None:
        return tensors.allgather(value, name)
    return raw.allgather(np.asarray(value), name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value of rank `root_rank`."""
    tensors = _of_tensorflow()
    if tensors is not None:
        return tensors.broadcast(value, root_rank, name)
    return raw.broadcast(np.asarray(value), root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """This rank's share of the rows of the reduction."""
    tensors = _of_tensorflow()
    if tensors is not None:
        return tensors.reducescatter(value, name, op)
    return raw.reducescatter(np.asarray(value), name, op)


def broadcast_global_variables(root_rank: int) -> Any:
    """Overwrites all variables of TensorFlow's graph with those of rank `root_rank`."""
    tensors = _of_tensorflow()
    if tensors is None:
        raise RuntimeError(
            "hvd.broadcast_global_variables() needs a graph of TensorFlow 1; use "
            "hvd.callbacks.BroadcastGlobalVariablesCallback"
        )
    return tensors.broadcast_global_variables(root_rank)


def _of_tensorflow() -> Any:
    """The same functions on tensors, where Keras runs on TensorFlow."""
    if backend_of(keras) != "tensorflow":
        return None
    return importlib.import_module("horovod.tensorflow.keras.values")
