"""Bringing parameters and the state of optimizers from one rank to all."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.jax.mpi_ops import broadcast


def broadcast_parameters(
    params: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """The tree of rank `root_rank`: parameters, the state of an optimizer, keys for random numbers.

    Every rank needs a tree of the same structure; what comes back replaces it.
    """
    leaves, structure = jax.tree_util.tree_flatten(params)
    arrays = [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in leaves]
    received = broadcast(arrays, root_rank, process_set=process_set)
    return jax.tree_util.tree_unflatten(
        structure,
        [
            jax.random.wrap_key_data(new, impl=jax.random.key_impl(old)) if is_key(old) else new
            for new, old in zip(received, leaves)
        ],
    )


broadcast_optimizer_state = broadcast_parameters


def is_key(leaf: Any) -> bool:
    """Whether this is a key for random numbers of the kind that is no plain array."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
