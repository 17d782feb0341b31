"""The collectives outside compiled programs: arrays go through host memory unchanged.

On CPUs inputs are not copied. On GPUs they are, because memory for results that stay there could
only come from a program, compiled anew for every shape. Element types that the engine does not know
are sent as others of the same size, and reductions that would be wrong that way raise an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from horovod import raw
from horovod.common.calls import by_type
from horovod.jax.handlers import is_native
from horovod.jax.spec import CollectiveSpec

_noted: list[str] = []


def run(spec: CollectiveSpec, leaves: Sequence[Any]) -> list[jax.Array]:
    """Runs a collective on concrete arrays."""
    if spec.kind != "broadcast":
        # Parameters are broadcast once, at the start.
        _note_device(leaves)
    hosts = [np.asarray(leaf) for leaf in leaves]
    if spec.kind in ("allreduce", "reducescatter"):
        for host in hosts:
            _check_reduction(spec, host.dtype)
    return [_put(array, leaf) for array, leaf in zip(run_on_host(spec, hosts), leaves)]


def run_on_host(
    spec: CollectiveSpec, hosts: Sequence[np.ndarray[Any, Any]]
) -> list[np.ndarray[Any, Any]]:
    """Runs a collective on NumPy arrays."""
    start = _STARTS[spec.kind]
    pending: list[tuple[list[int], raw.Pending[list[Any]]]] = []
    sources = [_travelling(host) for host in hosts]
    for number, places in enumerate(by_type(source.dtype for source in sources)):
        name = None if spec.given is None else f"{spec.given}.{number}"
        pending.append((places, start(spec, [sources[place] for place in places], name)))
    results: list[Any] = [None] * len(hosts)
    for places, operation in pending:
        for place, array in zip(places, operation.wait()):
            results[place] = _arrived(array, hosts[place])
    return results


def alltoall(spec: CollectiveSpec, leaf: Any, splits: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """Exchanges unequal shares; returns the received rows and how many came from each rank."""
    host = np.asarray(leaf)
    received, rows = raw.alltoall(_travelling(host), splits, spec.given, spec.process_set)
    numbers = np.asarray(rows, np.int32)
    return _put(_arrived(received, host), leaf), jax.device_put(numbers)


def _put(array: np.ndarray[Any, Any], leaf: Any) -> jax.Array:
    """The result as an array on the device that the program has chosen for its operand."""
    # Old releases do not have the public name.
    is_committed = getattr(leaf, "committed", getattr(leaf, "_committed", False))
    devices = leaf.devices() if is_committed else ()
    # Not `jnp.asarray`, which compiles a copy for every new shape.
    result: jax.Array = jax.device_put(array, *(devices if len(devices) == 1 else ()))
    return result


def _allreduce(spec: CollectiveSpec, arrays: list[Any], name: str | None) -> raw.Pending[list[Any]]:
    factors = (spec.prescale, spec.postscale)
    return raw.grouped_allreduce_async(arrays, name, spec.op, *factors, spec.process_set)


def _reducescatter(
    spec: CollectiveSpec, arrays: list[Any], name: str | None
) -> raw.Pending[list[Any]]:
    factors = (spec.prescale, spec.postscale)
    return raw.grouped_reducescatter_async(arrays, name, spec.op, *factors, spec.process_set)


def _allgather(spec: CollectiveSpec, arrays: list[Any], name: str | None) -> raw.Pending[list[Any]]:
    return raw.grouped_allgather_async(arrays, name, spec.process_set)


class _Each:
    """Operations on single arrays that are waited for together."""

    def __init__(self, pending: list[raw.Pending[Any]]) -> None:
        self._pending = pending

    def wait(self) -> list[Any]:
        return [each.wait() for each in self._pending]


def _broadcast(spec: CollectiveSpec, arrays: list[Any], name: str | None) -> Any:
    names = [None if name is None else f"{name}.{place}" for place in range(len(arrays))]
    each = zip(arrays, names)
    return _Each([raw.broadcast_async(a, spec.root, n, spec.process_set) for a, n in each])


def _alltoall(spec: CollectiveSpec, arrays: list[Any], name: str | None) -> Any:
    names = [None if name is None else f"{name}.{place}" for place in range(len(arrays))]
    each = zip(arrays, names)
    pending = [raw.alltoall_async(a, None, n, spec.process_set) for a, n in each]

    class _Rows(_Each):
        def wait(self) -> list[Any]:
            return [received for received, _ in super().wait()]

    return _Rows(pending)


_STARTS: dict[str, Callable[[CollectiveSpec, list[Any], str | None], Any]] = {
    "allgather": _allgather,
    "allreduce": _allreduce,
    "alltoall": _alltoall,
    "broadcast": _broadcast,
    "reducescatter": _reducescatter,
}


def _travelling(host: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Views the array as an element type that the engine knows."""
    host = np.ascontiguousarray(host).reshape(host.shape)
    if host.dtype.kind == "u" and host.dtype.itemsize >= 4:
        return host.view(f"i{host.dtype.itemsize}")
    if host.dtype.kind == "c":
        return host[..., None].view(f"f{host.dtype.itemsize // 2}")
    if host.dtype.name.startswith("float8"):
        return host.view(np.uint8)
    return host


def _arrived(array: np.ndarray[Any, Any], host: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Views the result as the original element type."""
    if host.dtype.kind == "c":
        array = array.view(host.dtype)
        return array.reshape(array.shape[:-1])
    return array.view(host.dtype)


def _check_reduction(spec: CollectiveSpec, dtype: np.dtype[Any]) -> None:
    plain = spec.prescale == 1.0 and spec.postscale == 1.0
    if dtype.kind == "c" and spec.op not in (raw.Average, raw.Sum):
        raise ValueError("complex numbers can be summed and averaged only")
    unsigned = dtype.kind == "u" and dtype.itemsize >= 4
    if unsigned and not (plain and spec.op in (raw.Sum, raw.Product)):
        raise ValueError(
            "uint32 and uint64 can be summed and multiplied only, without factors; convert the "
            "array to a signed or floating-point type"
        )
    if dtype.name.startswith("float8"):
        raise ValueError("float8 cannot be reduced; convert the array to bfloat16")


def _note_device(leaves: Sequence[Any]) -> None:
    for leaf in leaves:
        devices = leaf.devices() if isinstance(leaf, jax.Array) else ()
        note(next((device.platform for device in devices), "cpu"))


def note(platform: str) -> None:
    """Warns once that arrays on devices other than CPUs take a detour."""
    if platform != "cpu" and not _noted:
        _noted.append(platform)
        hint = "; inside jax.jit they stay on the GPU" if is_native(platform) else ""
        warnings.warn(f"arrays on {platform} go through host memory{hint}", stacklevel=5)
