"""The collectives on arrays and on whole trees of them, eager and inside of `jax.jit`.

A tree is one operation, whatever element types its leaves have. Results are new arrays: nothing in
JAX is changed in place. "All ranks" are those of the process set; ranks in arguments are ranks of
the world.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from horovod import _native
from horovod.common.basics import _basics
from horovod.common.compression import checked
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    registered_id,
    remove_process_set,
    restart_unnamed,
)
from horovod.common.reductions import Adasum, Average, Max, Min, Product, Sum, check_scatter
from horovod.jax import eager
from horovod.jax.compression import Compression, Compressor
from horovod.jax.gradients import collective
from horovod.jax.how import How
from horovod.jax.names import name_here

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "reducescatter",
    "remove_process_set",
]


def allreduce(
    tree: Any,
    op: int = Average,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The reduction of every array of `tree` over all ranks; gradients flow through sums."""
    checked(compression)
    _check_op(op)
    leaves, structure = _flat(tree)
    pairs = [compression.compress(leaf) for leaf in leaves]
    small = [leaf for leaf, _ in pairs]
    how = _how("allreduce", small, name, process_set)
    how = How(
        **{**how.__dict__, "op": op, "prescale": prescale_factor, "postscale": postscale_factor}
    )
    reduced = collective(how, small)
    whole = [compression.decompress(leaf, context) for leaf, (_, context) in zip(reduced, pairs)]
    return jax.tree_util.tree_unflatten(structure, whole)


def allgather(
    tree: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The rows of all ranks, one behind the other; gradients flow through it.

    Outside of `jax.jit` ranks may contribute different numbers of rows. A compiled program needs to
    know: there all contribute the same.
    """
    return _run("allgather", tree, name, process_set)


def broadcast(
    tree: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The arrays of rank `root_rank`; gradients flow through it."""
    return _run("broadcast", tree, name, process_set, root=operator.index(root_rank))


def alltoall(
    tensor: Any,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The rows that all ranks have for this one; gradients flow through equal shares.

    With `splits`, how many rows each rank gets, the result is `(rows, received_splits)`, as those
    of one array and outside of `jax.jit`. Without, every array of a tree is cut into equal shares.
    """
    if splits is None:
        return _run("alltoall", tensor, name, process_set)
    if isinstance(tensor, jax.core.Tracer):
        raise ValueError(
            "alltoall with splits has results whose shapes are not known inside of jax.jit and "
            "jax.grad; call it outside, or leave splits out and fill up the shares"
        )
    how = How("alltoall", "", name, process_set)
    return eager.alltoall(how, tensor, splits)


def reducescatter(
    tree: Any,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """This rank's share of the rows of the reduction; the first ranks get one more if need be."""
    check_scatter(op)
    factors = {"prescale": prescale_factor, "postscale": postscale_factor}
    return _run("reducescatter", tree, name, process_set, op=op, **factors)


# A list is a tree.
grouped_allreduce = allreduce
grouped_allgather = allgather
grouped_reducescatter = reducescatter


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every rank has come here; not for compiled programs."""
    _native.wait(_native.barrier("barrier.noname", True, registered_id(process_set)))


def join(device: int = -1) -> int:
    """Says that this rank is out of data, and waits until all ranks have said so.

    Until then the others' reductions take zeros from this rank. Gives the rank that came last.
    """
    last: int = _native.wait(_native.join(True))
    restart_unnamed()
    return last


def _run(kind: str, tree: Any, name: str | None, process_set: ProcessSet, **settings: Any) -> Any:
    leaves, structure = _flat(tree)
    how = _how(kind, leaves, name, process_set)
    how = How(**{**how.__dict__, **settings})
    return jax.tree_util.tree_unflatten(structure, collective(how, leaves))


def _check_op(op: Any) -> None:
    if op not in (Average, Sum, Adasum, Min, Max, Product):
        raise ValueError(
            f"op is {op!r}; give hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum"
        )


def _flat(tree: Any) -> tuple[list[Any], Any]:
    leaves, structure = jax.tree_util.tree_flatten(tree)
    return [_array(leaf) for leaf in leaves], structure


def _array(leaf: Any) -> Any:
    array = leaf if isinstance(leaf, jax.Array) else _converted(leaf)
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        raise ValueError(
            f"an array of `{array.dtype}` does not travel; give `jax.random.key_data` of a key"
        )
    return array


def _converted(leaf: Any) -> Any:
    try:
        return jnp.asarray(leaf)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(leaf)
        raise TypeError(
            "horovod.jax takes arrays of JAX and whatever jax.numpy.asarray makes one of, such as "
            f"NumPy arrays and numbers, and this is a `{kind.__module__}.{kind.__qualname__}` "
            f"({error}); convert it first, or send it with hvd.broadcast_object"
        ) from error


def _how(kind: str, leaves: list[Any], name: str | None, process_set: ProcessSet) -> How:
    # Asking for the rank raises the right error before `init`, and not only when a program runs.
    _basics.rank()
    tracer = next((leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)), None)
    full = "" if tracer is None else f"jit.{kind}.{name}" if name else name_here(kind, tracer)
    return How(kind, full, name, process_set)
