"""Addresses of this machine, under Horovod's module name."""

from __future__ import annotations

from collections.abc import Iterable

from horovod.runner.common.util.network import (
    filter_local_addresses,
    find_port,
    get_local_host_addresses,
    get_local_intfs,
    resolve_host_address,
)

__all__ = [
    "filter_local_addresses",
    "find_port",
    "get_driver_ip",
    "get_local_host_addresses",
    "get_local_intfs",
    "resolve_host_address",
]


def get_driver_ip(nics: Iterable[str]) -> str:
    """Return the IPv4 address of the first network interface that has one.

    Args:
        nics: Names of the interfaces.

    Returns:
        The address.

    Raises:
        RuntimeError: If none has one.
    """
    names = list(nics)
    for addresses in get_local_intfs(names).values():
        for address in addresses:
            if ":" not in address:
                return address
    raise RuntimeError(f"none of the interfaces {', '.join(names)} has an IPv4 address here")
