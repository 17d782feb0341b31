"""The collectives inside compiled programs, and how a call is carried out.

On CPUs and NVIDIA GPUs a program calls the native handlers. On other devices it calls back into
Python, where the arrays go through host memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from horovod.jax import eager
from horovod.jax.handlers import handlers, is_native
from horovod.jax.spec import CollectiveSpec


def run(spec: CollectiveSpec, leaves: Sequence[Any]) -> list[jax.Array]:
    """Runs a collective, inside or outside compiled programs."""
    if not leaves:
        return []
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return eager.run(spec, leaves)
    _check_devices(spec)
    if is_native(jax.default_backend()):
        return _natively(spec, leaves)
    results: list[jax.Array] = jax.lax.platform_dependent(
        list(leaves),
        cpu=lambda leaves: _natively(spec, leaves),
        default=lambda leaves: _by_callback(spec, leaves),
    )
    return results


def _check_devices(spec: CollectiveSpec) -> None:
    """Raises if the collective would be called once per device, always with the same name."""
    # Older releases do not have this function.
    mesh: Any = getattr(jax.sharding, "get_abstract_mesh", _nothing)()
    manual = getattr(mesh, "manual_axes", ())
    devices = math.prod(mesh.shape[axis] for axis in manual)
    if devices > 1 and jax.local_device_count() > 1:
        raise ValueError(
            f"{spec.kind} inside shard_map over {devices} devices would be called by each of "
            "them; bring the shards together (`jax.lax.psum`) and call it outside the program "
            "that is mapped, or start a rank for each device"
        )


def _nothing() -> None:
    pass


def _natively(spec: CollectiveSpec, leaves: Sequence[Any]) -> list[jax.Array]:
    reduced = spec.reduced(leaves)
    shapes = _shapes(spec, reduced)
    if spec.has_token:
        shapes.append(_struct((1,), np.dtype(np.uint8)))
    wide = {int: np.int64, float: np.float64, str: str}
    settings = {**spec.attributes(), "tokens": len(leaves) - len(reduced)}
    attributes = {name: wide[type(value)](value) for name, value in settings.items()}
    # If a rank gets no rows at all, XLA would drop the call, and the other ranks would wait for it.
    kept = spec.kind == "reducescatter" and all(leaf.shape[0] < spec.members() for leaf in reduced)
    return handlers().call(spec.kind, shapes, leaves, kept=kept, **attributes)


def _by_callback(spec: CollectiveSpec, leaves: Sequence[Any]) -> list[jax.Array]:
    named = dataclasses.replace(spec, given=spec.name)

    def on_host(*arrays: Any) -> list[Any]:
        eager.note(jax.default_backend())
        return eager.run_on_host(named, [np.asarray(array) for array in arrays])

    results: list[jax.Array] = io_callback(on_host, _shapes(spec, leaves), *leaves)
    return results


def _shapes(spec: CollectiveSpec, leaves: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    return [_struct(tuple(spec.result(leaf.shape)), leaf.dtype) for leaf in leaves]


def _struct(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    # It is untyped in some releases.
    struct: Any = jax.ShapeDtypeStruct
    made: jax.ShapeDtypeStruct = struct(shape, dtype)
    return made
