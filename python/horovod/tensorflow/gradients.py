"""The gradients of the collectives with respect to what this rank contributed."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.common.reductions import Average
from horovod.tensorflow.library import ops


def _attributes(op: Any, *names: str) -> dict[str, Any]:
    return {name: op.get_attr(name) for name in names}


def _average(op: Any, gradient: Any) -> Any:
    return ops.horovod_allreduce(
        gradient,
        reduce_op=Average,
        prescale_factor=1.0,
        postscale_factor=1.0,
        **_attributes(op, "ignore_name_scope", "process_set_id"),
    )


_REDUCTION = (
    "reduce_op",
    "prescale_factor",
    "postscale_factor",
    "ignore_name_scope",
    "process_set_id",
)


@tf.RegisterGradient("HorovodAllreduce")
def _allreduce(op: Any, gradient: Any) -> Any:
    return ops.horovod_allreduce(gradient, **_attributes(op, *_REDUCTION))


@tf.RegisterGradient("HorovodGroupedAllreduce")
def _grouped_allreduce(op: Any, *gradients: Any) -> Any:
    return list(ops.horovod_grouped_allreduce(list(gradients), **_attributes(op, *_REDUCTION)))


def _own_rows(op: Any, tensor: Any, gradient: Any) -> Any:
    """Averages the gradients of all ranks; returns the rows that came from this rank."""
    number = op.get_attr("process_set_id")
    reduced = _average(op, gradient)
    rows = tf.reshape(tf.shape(tensor)[:1], [1])
    all_rows = ops.horovod_allgather(rows, process_set_id=number)
    # Rows are in the order of the set; the position of this rank says how many come before.
    mark = tf.reshape(ops.horovod_rank(), [1])
    before = ops.horovod_allgather(mark, process_set_id=number) < mark
    start = tf.reduce_sum(tf.where(before, all_rows, tf.zeros_like(all_rows)))
    return reduced[start : start + rows[0]]


@tf.RegisterGradient("HorovodAllgather")
def _allgather(op: Any, gradient: Any) -> Any:
    return _own_rows(op, op.inputs[0], gradient)


@tf.RegisterGradient("HorovodGroupedAllgather")
def _grouped_allgather(op: Any, *gradients: Any) -> Any:
    return [_own_rows(op, *pair) for pair in zip(op.inputs, gradients)]


@tf.RegisterGradient("HorovodBroadcast")
def _broadcast(op: Any, gradient: Any) -> Any:
    reduced = _average(op, gradient)
    is_root = tf.equal(ops.horovod_rank(), tf.cast(op.get_attr("root_rank"), tf.int32))
    return tf.where(is_root, reduced, tf.zeros_like(reduced))


@tf.RegisterGradient("HorovodAlltoall")
def _alltoall(op: Any, gradient: Any, _splits: Any) -> Any:
    back = ops.horovod_alltoall(
        gradient,
        splits=op.outputs[1],
        **_attributes(op, "ignore_name_scope", "process_set_id"),
    )
    tensor, came = op.inputs[0], tf.shape(back.output)
    # Rows beyond the splits were not sent.
    rest = tf.concat([tf.shape(tensor)[:1] - came[:1], came[1:]], axis=0)
    return [tf.concat([back.output, tf.zeros(rest, gradient.dtype)], axis=0), None]


def _gathered(op: Any, gradient: Any) -> Any:
    number = op.get_attr("process_set_id")
    factor = op.get_attr("prescale_factor") * op.get_attr("postscale_factor")
    size = tf.cast(ops.horovod_size(process_set_id=number), gradient.dtype)
    scale = size if op.get_attr("reduce_op") != Average else tf.ones_like(size)
    scaled = gradient * (scale * tf.cast(factor, gradient.dtype))
    return ops.horovod_allgather(scaled, process_set_id=number)


@tf.RegisterGradient("HorovodReducescatter")
def _reducescatter(op: Any, gradient: Any) -> Any:
    return _gathered(op, gradient)


@tf.RegisterGradient("HorovodGroupedReducescatter")
def _grouped_reducescatter(op: Any, *gradients: Any) -> Any:
    return [_gathered(op, gradient) for gradient in gradients]


for _name in ("Join", "Barrier", "Size", "ProcessSetIncluded", "Rank", "LocalRank", "LocalSize"):
    tf.no_gradient(f"Horovod{_name}")
