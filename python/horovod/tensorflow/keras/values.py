"""Collectives on plain values, as programs of Keras use them outside of a graph.

A value becomes a constant; the result is a tensor, or in a graph of TensorFlow 1 what the session
of Keras gives for it.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import horovod.tensorflow as _hvd
from horovod.common.reductions import Average
from horovod.tensorflow.compression import Compression


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """The reduction of the values of all ranks: their average unless `op` says otherwise."""
    return _run(
        _hvd.allreduce(
            tf.constant(value),
            average=average,
            compression=compression,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            name=name,
        )
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """The values of all ranks, one behind the other."""
    return _run(_hvd.allgather(tf.constant(value), name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value of rank `root_rank`."""
    return _run(_hvd.broadcast(tf.constant(value), root_rank, name))


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """This rank's share of the rows of the reduction."""
    return _run(_hvd.reducescatter(tf.constant(value), op=op, name=name))


def broadcast_global_variables(root_rank: int) -> Any:
    """Overwrites all variables of the graph with those of rank `root_rank`."""
    return _run(_hvd.broadcast_global_variables(root_rank))


def _run(result: Any) -> Any:
    if tf.compat.v1.executing_eagerly_outside_functions():
        return result
    session = tf.compat.v1.get_default_session()
    if session is None:
        # Keras 3 has no sessions.
        own: Any = getattr(tf.compat.v1.keras.backend, "get_session", None)
        if own is None:
            raise RuntimeError(
                "there is no session here, and Keras 3 makes none; make one the default, use Keras "
                "2 (TF_USE_LEGACY_KERAS=1), or do not disable eager execution"
            )
        session = own()
    return session.run(result)
