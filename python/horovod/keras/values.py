"""Collectives on plain values, as programs of Keras use them; arrays come back with any backend."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from horovod import raw
from horovod._keras.backends import backend_of
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
    return raw.allreduce(np.asarray(value), name, op, prescale_factor, postscale_factor)


def allgather(value: Any, name: str | None = None) -> Any:
    """The values of all ranks, one behind the other."""
    return raw.allgather(np.asarray(value), name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value of rank `root_rank`."""
    return raw.broadcast(np.asarray(value), root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """This rank's share of the rows of the reduction."""
    return raw.reducescatter(np.asarray(value), name, op)


def broadcast_global_variables(root_rank: int) -> Any:
    """Overwrites all variables of TensorFlow's graph with those of rank `root_rank`."""
    if backend_of(keras) != "tensorflow":
        raise RuntimeError(
            "hvd.broadcast_global_variables() needs a graph of TensorFlow 1; use "
            "hvd.callbacks.BroadcastGlobalVariablesCallback"
        )
    from horovod.tensorflow.keras import values

    return values.broadcast_global_variables(root_rank)
