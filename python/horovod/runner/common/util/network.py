"""Ports and addresses of this machine."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

from horovod import _native

T = TypeVar("T")

# The range in which services look for a free port.
_PORTS = range(1024, 65536)

# Horovod's own protocol between launcher and tasks, which unpickles data from the network.
_SERVICES = frozenset(
    {
        "AckResponse",
        "AckStreamResponse",
        "BasicClient",
        "BasicService",
        "MuxService",
        "PingRequest",
        "PingResponse",
        "Wire",
    }
)


class NoValidAddressesFound(Exception):
    """None of the addresses answers."""


def find_port(server_factory: Callable[[tuple[str, int]], T]) -> tuple[T, int]:
    """Start a server on a free port.

    Args:
        server_factory: Function that starts a server at an address, a pair of host and port, and
            raises `OSError` if the port is taken.

    Returns:
        The server and its port.

    Raises:
        OSError: If no port is free.
    """
    first = random.randrange(len(_PORTS))
    for offset in range(len(_PORTS)):
        port = _PORTS[(first + offset) % len(_PORTS)]
        try:
            return server_factory(("", port)), port
        except OSError:
            continue
    raise OSError("no port from 1024 on is free; `ss -tln` shows what is listening")


def get_local_host_addresses() -> list[str]:
    """Return all addresses of this machine.

    Returns:
        The addresses, each once.
    """
    return list(dict.fromkeys(address for _, address in _native.interfaces()))


def get_local_intfs(nics: Iterable[str] | None = None) -> dict[str, list[str]]:
    """Return the addresses of the network interfaces of this machine.

    Args:
        nics: Names of the interfaces (default: all).

    Returns:
        Addresses by interface.
    """
    wanted = None if nics is None else set(nics)
    found: dict[str, list[str]] = {}
    for name, address in _native.interfaces():
        if wanted is None or name in wanted:
            found.setdefault(name, []).append(address)
    return found


def resolve_host_address(host_name: str) -> str | None:
    """Return the first IPv4 address of a host.

    Args:
        host_name: Name of the host.

    Returns:
        The address, or None if it has none.
    """
    try:
        return socket.gethostbyname(host_name)
    except OSError:
        return None


def filter_local_addresses(all_host_names: Iterable[str]) -> list[str]:
    """Return which hosts are other machines.

    Args:
        all_host_names: Names of hosts.

    Returns:
        Those that are not this machine.
    """
    own = set(get_local_host_addresses())
    names = [(name, resolve_host_address(name)) for name in all_host_names]
    return [name for name, address in names if address is None or address not in own]


def __getattr__(name: str) -> NoReturn:
    if name in _SERVICES:
        raise ImportError(
            f"{__name__}.{name} is not part of Ronde, which unpickles nothing from a network: use "
            "multiprocessing.connection, or horovod.run for functions on ranks"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__: list[Any] = [
    "NoValidAddressesFound",
    "filter_local_addresses",
    "find_port",
    "get_local_host_addresses",
    "get_local_intfs",
    "resolve_host_address",
]
