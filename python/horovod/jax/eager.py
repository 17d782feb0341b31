"""The collectives outside of compiled programs: arrays go through the host's memory as they are.

On CPUs nothing is copied on the way in. Element types that the engine does not know travel as
others of the same size, and reductions that would come out wrong that way are refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from horovod import raw
from horovod.jax.how import How

_noted: list[str] = []


def run(how: How, leaves: Sequence[Any]) -> list[jax.Array]:
    """The results of a collective on concrete arrays; `how.splits` may be any."""
    _note_device(leaves)
    hosts = [np.asarray(leaf) for leaf in leaves]
    if how.kind in ("allreduce", "reducescatter"):
        for host in hosts:
            _check_reduction(how, host.dtype)
    return [jnp.asarray(array) for array in run_on_host(how, hosts)]


def run_on_host(how: How, hosts: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """The same on arrays of NumPy."""
    start = _STARTS[how.kind]
    pending: list[tuple[list[int], raw.Pending[list[Any]]]] = []
    sources = [_travelling(host) for host in hosts]
    for number, places in enumerate(_by_type(sources)):
        name = None if how.given is None else f"{how.given}.{number}"
        pending.append((places, start(how, [sources[place] for place in places], name)))
    results: list[Any] = [None] * len(hosts)
    for places, flight in pending:
        for place, array in zip(places, flight.wait()):
            results[place] = _arrived(array, hosts[place])
    return results


def alltoall(how: How, leaf: Any, splits: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """The rows received by an exchange of unequal shares, and how many came from each."""
    host = np.asarray(leaf)
    received, rows = raw.alltoall(_travelling(host), splits, how.given, how.process_set)
    return jnp.asarray(_arrived(received, host)), jnp.asarray(np.asarray(rows, np.int32))


def _allreduce(how: How, arrays: list[Any], name: str | None) -> raw.Pending[list[Any]]:
    factors = (how.prescale, how.postscale)
    return raw.grouped_allreduce_async(arrays, name, how.op, *factors, how.process_set)


def _reducescatter(how: How, arrays: list[Any], name: str | None) -> raw.Pending[list[Any]]:
    factors = (how.prescale, how.postscale)
    return raw.grouped_reducescatter_async(arrays, name, how.op, *factors, how.process_set)


def _allgather(how: How, arrays: list[Any], name: str | None) -> raw.Pending[list[Any]]:
    return raw.grouped_allgather_async(arrays, name, how.process_set)


class _Each:
    """Operations of single arrays that are waited for together."""

    def __init__(self, flights: list[raw.Pending[Any]]) -> None:
        self._flights = flights

    def wait(self) -> list[Any]:
        return [flight.wait() for flight in self._flights]


def _broadcast(how: How, arrays: list[Any], name: str | None) -> Any:
    names = [None if name is None else f"{name}.{place}" for place in range(len(arrays))]
    each = zip(arrays, names)
    return _Each([raw.broadcast_async(a, how.root, n, how.process_set) for a, n in each])


def _alltoall(how: How, arrays: list[Any], name: str | None) -> Any:
    names = [None if name is None else f"{name}.{place}" for place in range(len(arrays))]
    each = zip(arrays, names)
    flights = [raw.alltoall_async(a, None, n, how.process_set) for a, n in each]

    class _Rows(_Each):
        def wait(self) -> list[Any]:
            return [received for received, _ in super().wait()]

    return _Rows(flights)


_STARTS: dict[str, Callable[[How, list[Any], str | None], Any]] = {
    "allgather": _allgather,
    "allreduce": _allreduce,
    "alltoall": _alltoall,
    "broadcast": _broadcast,
    "reducescatter": _reducescatter,
}


def _travelling(host: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array under an element type that the engine knows."""
    host = np.ascontiguousarray(host).reshape(host.shape)
    if host.dtype.kind == "u" and host.dtype.itemsize >= 4:
        return host.view(f"i{host.dtype.itemsize}")
    if host.dtype.kind == "c":
        return host[..., None].view(f"f{host.dtype.itemsize // 2}")
    if host.dtype.name.startswith("float8"):
        return host.view(np.uint8)
    return host


def _arrived(array: np.ndarray[Any, Any], host: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array under the element type that it had."""
    if host.dtype.kind == "c":
        array = array.view(host.dtype)
        return array.reshape(array.shape[:-1])
    return array.view(host.dtype)


def _check_reduction(how: How, dtype: np.dtype[Any]) -> None:
    plain = how.prescale == 1.0 and how.postscale == 1.0
    if dtype.kind == "c" and how.op not in (raw.Average, raw.Sum):
        raise ValueError("complex numbers can be summed and averaged only")
    unsigned = dtype.kind == "u" and dtype.itemsize >= 4
    if unsigned and not (plain and how.op in (raw.Sum, raw.Product)):
        raise ValueError(
            "uint32 and uint64 can be summed and multiplied only, without factors; convert the "
            "array to a signed or floating-point type"
        )
    if dtype.name.startswith("float8"):
        raise ValueError("float8 cannot be reduced; convert the array to bfloat16")


def _by_type(arrays: Sequence[np.ndarray[Any, Any]]) -> list[list[int]]:
    places: dict[Any, list[int]] = {}
    for place, array in enumerate(arrays):
        places.setdefault(array.dtype, []).append(place)
    return list(places.values())


def _note_device(leaves: Sequence[Any]) -> None:
    for leaf in leaves:
        devices = leaf.devices() if isinstance(leaf, jax.Array) else ()
        note(next((device.platform for device in devices), "cpu"))


def note(platform: str) -> None:
    """Says once that arrays on other devices than CPUs take a detour."""
    if platform != "cpu" and not _noted:
        _noted.append(platform)
        warnings.warn(
            f"collectives run on CPUs in this release: arrays on {platform} go through the host's "
            "memory",
            stacklevel=5,
        )
