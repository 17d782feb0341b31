"""The collectives inside of compiled programs, and which way a call takes.

On CPUs a program calls the native handlers. On other devices it calls back to Python, where the
arrays go through the host's memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from horovod.jax import eager
from horovod.jax.handlers import handlers
from horovod.jax.how import How


def run(how: How, leaves: Sequence[Any]) -> list[jax.Array]:
    """The results of a collective, wherever it is called."""
    if not leaves:
        return []
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return eager.run(how, leaves)
    _check_devices(how)
    if jax.default_backend() == "cpu":
        return _natively(how, leaves)
    results: list[jax.Array] = jax.lax.platform_dependent(
        list(leaves),
        cpu=lambda leaves: _natively(how, leaves),
        default=lambda leaves: _by_callback(how, leaves),
    )
    return results


def _check_devices(how: How) -> None:
    """Refuses what would be called once for each of several devices, all by one name."""
    # Releases without it cannot be asked.
    mesh: Any = getattr(jax.sharding, "get_abstract_mesh", _nothing)()
    manual = getattr(mesh, "manual_axes", ())
    devices = math.prod(mesh.shape[axis] for axis in manual)
    if devices > 1 and jax.local_device_count() > 1:
        raise ValueError(
            f"{how.kind} inside of shard_map over {devices} devices would be called by each of "
            "them; bring the shards together (`jax.lax.psum`) and call it outside of the program "
            "that is mapped, or start a rank for each device"
        )


def _nothing() -> None:
    pass


def _natively(how: How, leaves: Sequence[Any]) -> list[jax.Array]:
    attributes: dict[str, Any] = {"name": how.name, "set": np.int64(how.number())}
    if how.kind in ("allreduce", "reducescatter"):
        attributes["op"] = np.int64(how.op)
        attributes["prescale"] = np.float64(how.prescale)
        attributes["postscale"] = np.float64(how.postscale)
    if how.kind == "broadcast":
        attributes["root"] = np.int64(how.root)
    if how.kind == "alltoall":
        attributes["members"] = np.int64(how.members())
    return handlers().call(how.kind, _shapes(how, leaves), leaves, **attributes)


def _by_callback(how: How, leaves: Sequence[Any]) -> list[jax.Array]:
    named = How(**{**how.__dict__, "given": how.name})

    def on_host(*arrays: Any) -> list[Any]:
        eager.note(jax.default_backend())
        return eager.run_on_host(named, [np.asarray(array) for array in arrays])

    results: list[jax.Array] = io_callback(on_host, _shapes(how, leaves), *leaves)
    return results


def _shapes(how: How, leaves: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    # It has no types in some releases.
    struct: Any = jax.ShapeDtypeStruct
    return [struct(_shape(how, leaf.shape), leaf.dtype) for leaf in leaves]


def _shape(how: How, shape: tuple[int, ...]) -> tuple[int, ...]:
    if how.kind in ("allreduce", "broadcast"):
        return shape
    if not shape:
        raise ValueError(f"{how.kind} needs arrays with a first dimension, and this is a scalar")
    members, rows = how.members(), shape[0]
    if how.kind == "allgather":
        return (rows * members, *shape[1:])
    if how.kind == "alltoall":
        if rows % members:
            raise ValueError(
                "splits not provided, but first dimension of tensor is not an even multiple of the "
                f"number of workers. The array has {rows} rows for {members} workers."
            )
        return shape
    own = rows // members + (how.place() < rows % members)
    return (own, *shape[1:])
