"""Which hosts there are for an elastic job, and how many slots each has."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NoReturn

from horovod import _native

__all__ = ["FixedHosts", "HostDiscovery", "HostDiscoveryScript"]


class HostDiscovery(ABC):
    """A way to find hosts."""

    @abstractmethod
    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The hosts there are now, and the slots of each."""


class HostDiscoveryScript(HostDiscovery):
    """Hosts that a shell command prints, `node-a:4` on each line, or `node-a` with `slots`."""

    def __init__(self, discovery_script: str, slots: int | None = None) -> None:
        self._discovery_script = discovery_script
        self._default_slots = slots

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Runs the command."""
        ran = subprocess.run(
            self._discovery_script, shell=True, stdout=subprocess.PIPE, text=True, check=False
        )
        if ran.returncode != 0:
            raise RuntimeError(
                f"Failed to execute discovery script: {self._discovery_script}. "
                f"Exit code: {ran.returncode}"
            )
        if not ran.stdout.strip():
            return {}
        return dict(_native.parse_discovered(ran.stdout, self._default_slots))


class FixedHosts(HostDiscovery):
    """Hosts that the program itself names."""

    def __init__(self, available_hosts: Mapping[str, int]) -> None:
        self._available_hosts = dict(available_hosts)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """What was set last."""
        return dict(self._available_hosts)

    def set(self, available_hosts: Mapping[str, int]) -> None:
        """Replaces the hosts."""
        self._available_hosts = dict(available_hosts)


def __getattr__(name: str) -> NoReturn:
    if name in ("HostManager", "HostState", "DiscoveredHosts"):
        raise ImportError(
            f"{__name__}.{name} is not part of Ronde: the launcher itself decides about hosts; use "
            "`horovod.run(host_discovery_script=...)` or `horovodrun --host-discovery-script`"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
