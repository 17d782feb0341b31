"""The collectives as functions that JAX can differentiate.

All ranks together count as one program: a gradient is that of the sum of all ranks' losses. Every
backward pass is a collective too, so either all ranks take gradients or none do.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from horovod import raw
from horovod.common.calls import shares
from horovod.jax import order, traced
from horovod.jax.spec import CollectiveSpec

Leaves = list[Any]


def collective(spec: CollectiveSpec, leaves: Leaves) -> Leaves:
    """Runs a collective that can be differentiated."""
    if spec.has_token or not order.applies_to(leaves):
        return _collective(spec, leaves)
    before = order.previous(leaves)
    if before is not None:
        leaves = [*leaves, before]
    spec = dataclasses.replace(spec, has_token=True, after=before is not None)
    *results, token = _collective(spec, leaves)
    order.remember(results, token)
    return results


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _collective(spec: CollectiveSpec, leaves: Leaves) -> Leaves:
    return traced.run(spec, leaves)


def _forward(spec: CollectiveSpec, leaves: Leaves) -> tuple[Leaves, Any]:
    # Only the numbers of rows are needed, not the arrays.
    rows = [leaf.shape[0] if leaf.ndim else 0 for leaf in spec.reduced(leaves)]
    before = (leaves[-1].shape, leaves[-1].dtype) if spec.after else None
    # Not `traced.run`: the derivative may be differentiated again.
    results = collective(dataclasses.replace(spec, order=spec.order + 1), leaves)
    return results, _Rows(rows, before)


def _backward(spec: CollectiveSpec, rows: _Rows, cotangents: Leaves) -> tuple[Leaves]:
    cotangents = cotangents[: len(cotangents) - spec.has_token]
    # Arrays that are not of a continuous type have no gradient, and are not sent.
    live = [place for place, each in enumerate(cotangents) if each.dtype != jax.dtypes.float0]
    arrived = _RULES[spec.kind](
        spec, [cotangents[place] for place in live], [rows.each[place] for place in live]
    )
    gradients: Leaves = [None] * len(cotangents)
    for place, gradient in zip(live, arrived):
        gradients[place] = gradient
    for place, cotangent in enumerate(cotangents):
        if gradients[place] is None:
            shape = (rows.each[place], *cotangent.shape[1:]) if cotangent.ndim else ()
            gradients[place] = np.zeros(shape, jax.dtypes.float0)
    return ([*gradients, *rows.nothing()],)


_collective.defvjp(_forward, _backward)


@jax.tree_util.register_pytree_node_class
class _Rows:
    """Numbers of rows that are known while a program is traced."""

    def __init__(self, each: Sequence[int], before: tuple[Any, Any] | None = None) -> None:
        self.each = tuple(each)
        # The shape and element type of the operand that only establishes the order, if any.
        self.before = before

    def nothing(self) -> Leaves:
        """The gradient of that operand."""
        if self.before is None:
            return []
        shape, dtype = self.before
        is_continuous = jnp.issubdtype(dtype, jnp.inexact)
        return [np.zeros(shape, dtype if is_continuous else jax.dtypes.float0)]

    def tree_flatten(self) -> tuple[tuple[()], tuple[Any, ...]]:
        return (), (self.each, self.before)

    @classmethod
    def tree_unflatten(cls, fixed: tuple[Any, ...], _: Any) -> _Rows:
        return cls(*fixed)


def _of_allreduce(spec: CollectiveSpec, cotangents: Leaves, _: list[int]) -> Leaves:
    if spec.op not in (raw.Average, raw.Sum):
        raise NotImplementedError(
            "only sums and averages have gradients; use op=hvd.Sum or hvd.Average, or wrap the "
            "call in jax.lax.stop_gradient"
        )
    return collective(spec.backward("allreduce"), cotangents)


def _of_allgather(spec: CollectiveSpec, cotangents: Leaves, rows: list[int]) -> Leaves:
    back = spec.backward("allreduce", op=raw.Sum)
    summed = collective(back, cotangents)
    counts = [np.asarray([number], np.int64) for number in rows]
    if any(isinstance(each, jax.core.Tracer) for each in cotangents):
        starts = [spec.place() * number for number in rows]
    else:
        # Outside compiled programs ranks may have contributed different numbers of rows.
        every = raw.grouped_allgather(counts, process_set=spec.process_set) if counts else []
        starts = [int(each[: spec.place()].sum()) for each in every]
    return [each[start : start + number] for each, start, number in zip(summed, starts, rows)]


def _of_broadcast(spec: CollectiveSpec, cotangents: Leaves, _: list[int]) -> Leaves:
    summed = collective(spec.backward("allreduce", op=raw.Sum), cotangents)
    if raw.rank() == spec.root:
        return summed
    # Zeros, but computed from the sum: XLA would remove an unused sum, and the others would wait.
    return [jnp.where(jnp.isfinite(each), each, 0) * 0 for each in summed]


def _of_alltoall(spec: CollectiveSpec, cotangents: Leaves, _: list[int]) -> Leaves:
    return collective(spec.backward("alltoall"), cotangents)


def _of_reducescatter(spec: CollectiveSpec, cotangents: Leaves, rows: list[int]) -> Leaves:
    members = spec.members()
    factor = spec.prescale * spec.postscale / (members if spec.op == raw.Average else 1)
    scaled = [each * jnp.asarray(factor, each.dtype) for each in cotangents]
    back = spec.backward("allgather", prescale=1.0, postscale=1.0)
    if not any(number % members for number in rows):
        return collective(back, scaled)
    # Shares differ by a row: they are padded to the same size, and the padding is dropped.
    padding = [shares(number, members)[0] - len(each) for number, each in zip(rows, scaled)]
    padded = [_pad(each, more) for each, more in zip(scaled, padding)]
    return [
        _without_filling(each, number, members)
        for each, number in zip(collective(back, padded), rows)
    ]


def _pad(array: Any, rows: int) -> Any:
    return jnp.pad(array, [(0, rows)] + [(0, 0)] * (array.ndim - 1))


def _without_filling(array: Any, rows: int, members: int) -> Any:
    each = shares(rows, members)
    parts = [array[place * each[0] : place * each[0] + own] for place, own in enumerate(each)]
    return jnp.concatenate(parts)


_RULES = {
    "allgather": _of_allgather,
    "allreduce": _of_allreduce,
    "alltoall": _of_alltoall,
    "broadcast": _of_broadcast,
    "reducescatter": _of_reducescatter,
}
