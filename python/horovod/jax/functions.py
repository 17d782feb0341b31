"""Bringing parameters, optimizer state and Python objects from one rank to all, or to everybody.

Objects travel as cloudpickle bytes between ranks of one job, which have authenticated each other.
"""

from __future__ import annotations

from typing import Any

import cloudpickle  # type: ignore[import-untyped, unused-ignore]
import jax
import jax.numpy as jnp
import numpy as np

from horovod import raw
from horovod.common.basics import _basics
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.jax.mpi_ops import broadcast


def broadcast_parameters(
    params: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """The tree of rank `root_rank`: parameters, the state of an optimizer, keys for random numbers.

    Every rank needs a tree of the same structure; what comes back replaces it.
    """
    leaves, structure = jax.tree_util.tree_flatten(params)
    arrays = [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in leaves]
    received = broadcast(arrays, root_rank, process_set=process_set)
    return jax.tree_util.tree_unflatten(
        structure,
        [
            jax.random.wrap_key_data(new, impl=jax.random.key_impl(old)) if _is_key(old) else new
            for new, old in zip(received, leaves)
        ],
    )


broadcast_optimizer_state = broadcast_parameters


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object of rank `root_rank`; what the other ranks pass does not matter."""
    name = name or "broadcast_object"
    is_root = _basics.rank() == root_rank
    data = np.frombuffer(cloudpickle.dumps(obj), np.uint8) if is_root else np.zeros(0, np.uint8)
    length = raw.broadcast(np.array([data.size]), root_rank, f"{name}.sz", process_set)
    if not is_root:
        data = np.zeros(int(length[0]), np.uint8)
    data = raw.broadcast(data, root_rank, f"{name}.t", process_set)
    return obj if is_root else cloudpickle.loads(data.tobytes())


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """The objects of all ranks, in rank order."""
    name = name or "allgather_object"
    data = np.frombuffer(cloudpickle.dumps(obj), np.uint8)
    lengths = raw.allgather(np.array([data.size]), f"{name}.sz", process_set)
    gathered = raw.allgather(data, f"{name}.t", process_set)
    parts = np.split(gathered, np.cumsum(lengths)[:-1])
    return [cloudpickle.loads(part.tobytes()) for part in parts]


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
