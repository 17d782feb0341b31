"""Broadcasting parameters and optimizer states."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.jax.mpi_ops import broadcast

__all__ = [
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_parameters(
    params: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """Send a tree from one rank to all others, so that all ranks start with the same values.

    Takes parameters, optimizer states and random keys.

    Args:
        params: A tree of arrays, of the same structure on every rank.
        root_rank: Rank that sends, counted among all ranks of the job even if `process_set` is
            smaller (default: 0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        The tree of rank `root_rank`; use it instead of `params`.

    Raises:
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.

    Example:
        ```python
        import jax.numpy as jnp
        import horovod.jax as hvd

        hvd.init()
        params = {"w": jnp.ones((10, 1)), "b": jnp.zeros(1)}
        params = hvd.broadcast_parameters(params, root_rank=0)
        ```
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
"""Send an optimizer's state from one rank to all others; the same as `broadcast_parameters`."""


def is_key(leaf: Any) -> bool:
    """Whether this is a random key that is not a plain array."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
