"""Which Ray nodes have room for the ranks of an elastic job."""

from __future__ import annotations

import random
import time

from horovod.ray.adapter import BaseParams
from horovod.ray.nodes import alive, fits
from horovod.runner.elastic.discovery import HostDiscovery

__all__ = ["RayHostDiscovery", "TestDiscovery"]


class RayHostDiscovery(HostDiscovery):
    """Count the slots of Ray's nodes, assuming that nothing else runs on them.

    Args:
        use_gpu: Whether ranks need GPUs (default: False).
        cpus_per_slot: CPUs of each rank (default: 1).
        gpus_per_slot: GPUs of each rank (default: 1).
        cpus_per_worker: Another name for `cpus_per_slot` (default: None).
        gpus_per_worker: Another name for `gpus_per_slot` (default: None).
    """

    def __init__(
        self,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: int | None = 1,
        *,
        cpus_per_worker: float | None = None,
        gpus_per_worker: int | None = None,
    ) -> None:
        gpus = gpus_per_worker if gpus_per_worker is not None else gpus_per_slot
        cpus = cpus_per_worker if cpus_per_worker is not None else cpus_per_slot
        self._needs = BaseParams(cpus, use_gpu, gpus if use_gpu else None).resources()

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return the nodes that are alive.

        Returns:
            Number of slots by address; nodes that share an address are added up.
        """
        slots: dict[str, int] = {}
        for node in alive():
            room = fits(node.resources, self._needs)
            if room > 0:
                slots[node.address] = slots.get(node.address, 0) + room
        return slots


class TestDiscovery(RayHostDiscovery):
    """Pretend that nodes come and go, to test that a program survives it.

    Args:
        min_hosts: With no more nodes than this, one comes back.
        max_hosts: With this many nodes, one leaves.
        change_frequency_s: Seconds between two changes.
        use_gpu: Whether ranks need GPUs (default: False).
        cpus_per_slot: CPUs of each rank (default: 1).
        gpus_per_slot: GPUs of each rank (default: 1).
        verbose: Whether to print the nodes (default: True).
        _graceful: Accepted for compatibility with Horovod; nodes are only left out, never killed
            (default: True).
        cpus_per_worker: Another name for `cpus_per_slot` (default: None).
        gpus_per_worker: Another name for `gpus_per_slot` (default: None).
    """

    # It is not a test, whatever pytest may think of its name.
    __test__ = False

    def __init__(
        self,
        min_hosts: int,
        max_hosts: int,
        change_frequency_s: float,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: int | None = 1,
        verbose: bool = True,
        _graceful: bool = True,
        *,
        cpus_per_worker: float | None = None,
        gpus_per_worker: int | None = None,
    ) -> None:
        super().__init__(
            use_gpu,
            cpus_per_slot,
            gpus_per_slot,
            cpus_per_worker=cpus_per_worker,
            gpus_per_worker=gpus_per_worker,
        )
        self._limits = (min_hosts, max_hosts)
        self._every = change_frequency_s
        self._changed = time.monotonic()
        self._verbose = verbose
        self._left_out: set[str] = set()

    def add_host(self, hosts: dict[str, int]) -> None:
        """Bring a node back that was left out.

        Args:
            hosts: Slots of all nodes.
        """
        candidates = sorted(self._left_out & hosts.keys())
        if candidates:
            self._left_out.remove(random.choice(candidates))

    def remove_host(self, hosts: dict[str, int]) -> None:
        """Leave a node out.

        Args:
            hosts: Slots of all nodes.
        """
        candidates = sorted(hosts.keys() - self._left_out)
        if candidates:
            self._left_out.add(random.choice(candidates))

    def change_hosts(self, hosts: dict[str, int]) -> None:
        """Bring a node back or leave one out, at random within the limits.

        Args:
            hosts: Slots of all nodes.
        """
        self._left_out &= hosts.keys()
        count = len(hosts) - len(self._left_out)
        fewest, most = self._limits
        more = count <= fewest or (count < most and random.random() < 0.5)
        (self.add_host if more else self.remove_host)(hosts)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return the nodes that are not left out at the moment.

        Returns:
            Number of slots by address.
        """
        hosts = super().find_available_hosts_and_slots()
        if time.monotonic() - self._changed >= self._every:
            self.change_hosts(hosts)
            self._changed = time.monotonic()
        remaining = {name: slots for name, slots in hosts.items() if name not in self._left_out}
        if self._verbose:
            print(f"{len(remaining)} of {len(hosts)} hosts: {remaining}")
        return remaining
