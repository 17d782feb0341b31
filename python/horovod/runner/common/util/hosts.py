"""Hosts, slots, and the placement of ranks, as the launcher parses and assigns them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from horovod import _native


@dataclass(frozen=True)
class HostInfo:
    """A host and its number of slots."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Parses `node-a:4`."""
        (host,) = parse_hosts(host_string)
        return host


@dataclass(frozen=True)
class SlotInfo:
    """The placement of a rank."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self) -> str:
        """The numbers as text, for `from_response_string`."""
        numbers = (
            self.rank,
            self.size,
            self.local_rank,
            self.local_size,
            self.cross_rank,
            self.cross_size,
        )
        return ",".join(str(number) for number in numbers)

    @staticmethod
    def from_response_string(response_string: str) -> SlotInfo:
        """Parses what `to_response_string` returned, which does not include the host."""
        rank, size, local_rank, local_size, cross_rank, cross_size = map(
            int, response_string.split(",")
        )
        return SlotInfo("", rank, local_rank, cross_rank, size, local_size, cross_size)


INVALID_SLOT_INFO = SlotInfo("", -1, -1, -1, -1, -1, -1)


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Parses `node-a:4,node-b:4`; raises ValueError if it is invalid."""
    return [HostInfo(*host) for host in _native.parse_hosts(hosts_string)]


def parse_host_files(filename: str | os.PathLike[str]) -> str:
    """The hosts of a hostfile in the format of `-H`."""
    hosts = _native.parse_hostfile(Path(filename).read_text())
    return ",".join(f"{name}:{slots}" for name, slots in hosts)


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """The names of hosts, and the slots of each."""
    slots = dict(_native.parse_hosts(hosts))
    return list(slots), slots


def get_host_assignments(
    hosts: Iterable[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """The placement of ranks if all slots are used, up to `max_num_proc`, in rank order.

    Raises ValueError if there are fewer than `min_num_proc` slots.
    """
    offered = [(host.hostname, host.slots) for host in hosts]
    available = sum(slots for _, slots in offered)
    most = available if max_num_proc is None else min(available, max_num_proc)
    ranks = _native.assign_ranks(offered, max(most, min_num_proc))
    return [SlotInfo(*assigned) for assigned in ranks]
