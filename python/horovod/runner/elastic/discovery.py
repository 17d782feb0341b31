"""The available hosts of an elastic job, and the number of slots on each."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NoReturn

from horovod import _native

__all__ = ["FixedHosts", "HostDiscovery", "HostDiscoveryScript"]


class HostDiscovery(ABC):
    """Base class for finding the hosts of an elastic job."""

    @abstractmethod
    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return the hosts that are available now.

        Returns:
            Number of slots by host.
        """


class HostDiscoveryScript(HostDiscovery):
    """Finds hosts with a shell command that prints `node-a:4`, or `node-a`, on each line.

    Args:
        discovery_script: The command.
        slots: Slots of hosts that are printed without a number (default: None).
    """

    def __init__(self, discovery_script: str, slots: int | None = None) -> None:
        self._discovery_script = discovery_script
        self._default_slots = slots

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Run the command.

        Returns:
            Number of slots by host.

        Raises:
            RuntimeError: If the command fails.
            ValueError: If it prints something else.
        """
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
    """Hosts that the program sets itself.

    Args:
        available_hosts: Number of slots by host.
    """

    def __init__(self, available_hosts: Mapping[str, int]) -> None:
        self._available_hosts = dict(available_hosts)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return the hosts that were set last.

        Returns:
            Number of slots by host.
        """
        return dict(self._available_hosts)

    def set(self, available_hosts: Mapping[str, int]) -> None:
        """Replace the hosts.

        Args:
            available_hosts: Number of slots by host.
        """
        self._available_hosts = dict(available_hosts)


def __getattr__(name: str) -> NoReturn:
    if name in ("HostManager", "HostState", "DiscoveredHosts"):
        raise ImportError(
            f"{__name__}.{name} is not part of Ronde: the launcher itself decides about hosts; use "
            "`horovod.run(host_discovery_script=...)` or `horovodrun --host-discovery-script`"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
