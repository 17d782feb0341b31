"""The collectives on arrays and trees of arrays, eager and inside `jax.jit`.

A tree is one operation, whatever element types its leaves have. Results are new arrays: nothing in
JAX is changed in place. "All ranks" are those of the process set; ranks in arguments are ranks of
the world.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from horovod import raw
from horovod.common.basics import _basics
from horovod.common.compression import checked
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    registered_id,
    remove_process_set,
)
from horovod.common.reductions import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    check_reduction,
    check_scatter,
)
from horovod.jax import eager
from horovod.jax.compression import Compression, Compressor
from horovod.jax.gradients import collective
from horovod.jax.names import name_here
from horovod.jax.spec import CollectiveSpec

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ReduceOp",
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
    """Reduce an array, or every array of a tree, over all ranks as one operation.

    Works eagerly and inside `jax.jit`. Gradients flow through sums and averages; the backward pass
    is also a collective, so all ranks must run it.

    Args:
        tree: An array, or a tree of arrays such as nested lists and dictionaries; of the same
            structure and shapes on every rank.
        op: Reduction: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max`, `hvd.Product` or `hvd.Adasum`
            (default: `hvd.Average`).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A new tree like `tree`, the same on every rank.

    Raises:
        TypeError: If an input cannot be converted to an array.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
        jax.errors.JaxRuntimeError: Inside `jax.jit`, instead of the last two, when the result is
            used.

    Example:
        ```python
        import jax.numpy as jnp
        import horovod.jax as hvd

        hvd.init()
        mean = hvd.allreduce(jnp.ones(3) * hvd.rank())
        totals = hvd.allreduce({"a": jnp.ones(3), "b": jnp.ones(2)}, op=hvd.Sum)
        ```
    """
    checked(compression)
    check_reduction(op)
    leaves, structure = _flat(tree)
    pairs = [compression.compress(leaf) for leaf in leaves]
    small = [leaf for leaf, _ in pairs]
    spec = _spec("allreduce", small, name, process_set)
    spec = dataclasses.replace(spec, op=op, prescale=prescale_factor, postscale=postscale_factor)
    reduced = collective(spec, small)
    whole = [compression.decompress(leaf, context) for leaf, (_, context) in zip(reduced, pairs)]
    return jax.tree_util.tree_unflatten(structure, whole)


def allgather(
    tree: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Concatenate the arrays of all ranks along the first dimension.

    Gradients flow through it; the backward pass is also a collective, so all ranks must run it.

    Args:
        tree: An array with at least one dimension, or a tree of such arrays, of the same structure
            on every rank. First dimensions may differ between ranks outside `jax.jit`; the
            others must be the same.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A new tree with the rows of all ranks, in the order of the ranks.

    Raises:
        TypeError: If an input cannot be converted to an array.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
        jax.errors.JaxRuntimeError: Inside `jax.jit`, instead of the last two, when the result is
            used.
    """
    return _run("allgather", tree, name, process_set)


def broadcast(
    tree: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send an array, or every array of a tree, from one rank to all others and return it.

    Gradients flow through it; the backward pass is also a collective, so all ranks must run it.

    Args:
        tree: An array, or a tree of arrays such as nested lists and dictionaries; of the same
            structure and shapes on every rank.
        root_rank: Rank that sends, counted among all ranks of the job even if `process_set` is
            smaller (default: 0).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A new tree with what `tree` holds on rank `root_rank`.

    Raises:
        TypeError: If an input cannot be converted to an array.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
        jax.errors.JaxRuntimeError: Inside `jax.jit`, instead of the last two, when the result is
            used.
    """
    return _run("broadcast", tree, name, process_set, root=operator.index(root_rank))


def alltoall(
    tensor: Any,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send different rows of an array to different ranks.

    Without `splits` gradients flow through it; the backward pass is also a collective, so all ranks
    must run it. With `splits` it works only outside `jax.jit` and `jax.grad`.

    Args:
        tensor: An array with at least one dimension; without `splits`, also a tree of such arrays.
        splits: How many rows each rank of `process_set` gets, in the order of the ranks. Rows
            beyond their sum are not sent (default: the same number for every rank).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        The rows that the ranks sent to this one, in the order of the ranks. With `splits`, a pair:
        these rows, and how many came from each rank, as a 1-D int32 array.

    Raises:
        TypeError: If an input cannot be converted to an array.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
        jax.errors.JaxRuntimeError: Inside `jax.jit`, instead of the last two, when the result is
            used.
    """
    if splits is None:
        return _run("alltoall", tensor, name, process_set)
    if isinstance(tensor, jax.core.Tracer):
        raise ValueError(
            "alltoall with splits has results whose shapes are not known inside jax.jit and "
            "jax.grad; call it outside, or leave splits out and fill up the shares"
        )
    spec = CollectiveSpec("alltoall", "", process_set, given=name)
    return eager.alltoall(spec, tensor, splits)


def reducescatter(
    tree: Any,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce an array over all ranks and return this rank's share of the rows.

    Rows are split evenly; if they do not divide by the number of ranks, the first ranks get one
    extra row. Gradients flow through it; the backward pass is also a collective, so all ranks must
    run it.

    Args:
        tree: An array with at least one dimension, or a tree of such arrays; of the same structure
            and shapes on every rank.
        op: Reduction: `hvd.Average` or `hvd.Sum` (default: `hvd.Average`).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).

    Returns:
        A new tree with this rank's rows.

    Raises:
        TypeError: If an input cannot be converted to an array.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
        jax.errors.JaxRuntimeError: Inside `jax.jit`, instead of the last two, when the result is
            used.
        UnsupportedReductionError: If `op` is neither `hvd.Average` nor `hvd.Sum`; it is a
            `NotImplementedError` and a `ValueError`.
    """
    check_scatter(op)
    factors = {"prescale": prescale_factor, "postscale": postscale_factor}
    return _run("reducescatter", tree, name, process_set, op=op, **factors)


# A list is a tree.
grouped_allreduce = allreduce
"""Reduce several arrays over all ranks as one operation; the same as `allreduce`."""
grouped_allgather = allgather
"""Concatenate several arrays of all ranks as one operation; the same as `allgather`."""
grouped_reducescatter = reducescatter
"""Reduce several arrays and return this rank's share of the rows; the same as `reducescatter`."""


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks have called this function; not inside `jax.jit`.

    Args:
        process_set: Ranks that take part (default: all ranks).

    Raises:
        HorovodInternalError: If a rank was lost.
        ValueError: If Horovod is not initialized, or this rank is not in `process_set`.
    """
    raw.barrier(process_set)


def join(device: int = -1) -> int:
    """Tell the other ranks that this one has no more data, and wait until all ranks have joined.

    Meanwhile this rank contributes zeros to the reductions of the others; averages still divide by
    the number of all ranks. Other collectives fail while some rank has joined. Not inside
    `jax.jit`.

    Args:
        device: Accepted for compatibility with Horovod (default: -1).

    Returns:
        The rank that joined last.

    Raises:
        HorovodInternalError: If a rank was lost.
        ValueError: If Horovod is not initialized.
    """
    return raw.join()


def _run(kind: str, tree: Any, name: str | None, process_set: ProcessSet, **settings: Any) -> Any:
    leaves, structure = _flat(tree)
    spec = _spec(kind, leaves, name, process_set)
    spec = dataclasses.replace(spec, **settings)
    return jax.tree_util.tree_unflatten(structure, collective(spec, leaves))


def _flat(tree: Any) -> tuple[list[Any], Any]:
    leaves, structure = jax.tree_util.tree_flatten(tree)
    return [_array(leaf) for leaf in leaves], structure


def _array(leaf: Any) -> Any:
    array = leaf if isinstance(leaf, jax.Array) else _converted(leaf)
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        raise ValueError(
            f"an array of `{array.dtype}` cannot be sent; pass `jax.random.key_data` of a key"
        )
    return array


def _converted(leaf: Any) -> Any:
    try:
        return jnp.asarray(leaf)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(leaf)
        raise TypeError(
            "horovod.jax takes JAX arrays and anything that jax.numpy.asarray converts, such as "
            f"NumPy arrays and numbers, but this is a `{kind.__module__}.{kind.__qualname__}` "
            f"({error}); convert it first, or send it with hvd.broadcast_object"
        ) from error


def _spec(
    kind: str, leaves: list[Any], name: str | None, process_set: ProcessSet
) -> CollectiveSpec:
    # These raise the right errors here, not only when a program runs.
    _basics.rank()
    registered_id(process_set)
    tracer = next((leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)), None)
    full = "" if tracer is None else f"jit.{kind}.{name}" if name else name_here(kind, tracer)
    return CollectiveSpec(kind, full, process_set, given=name)
