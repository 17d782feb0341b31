"""Where ranks that are Ray's own processes run, and the places that they take.

Ranks of one Ray node share a host, whether or not the machine has other nodes.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import ray

from horovod.common import environment
from horovod.common.rendezvous import use_rendezvous
from horovod.ray.coordinator import Coordinator


class Where(NamedTuple):
    """Where a process runs."""

    hostname: str
    node_id: str
    gpus: list[str]


class Place(NamedTuple):
    """Its place in the world."""

    rank: int
    size: int
    host: str
    """The identity of its host."""


class Assignment(NamedTuple):
    """What a process needs to know, except the invitation."""

    place: Place
    variables: dict[str, str]
    path: list[str]
    """Where the caller finds modules."""


def here() -> Where:
    """Where this process runs."""
    node_id = ray.get_runtime_context().get_node_id()
    return Where(socket.gethostname(), node_id, [str(gpu) for gpu in ray.get_gpu_ids()])


def assign(
    found: Sequence[Where], nics: Collection[str] = (), more: Mapping[str, Any] | None = None
) -> list[Assignment]:
    """The places of processes that are given by rank.

    Args:
        found: Where they run.
        nics: Network interfaces for NCCL (default: it chooses).
        more: Further variables for all of them (default: none).
    """
    coordinator = Coordinator()
    for rank, where in enumerate(found):
        coordinator.register(where.hostname, where.node_id, rank)
    numbers, hosts = coordinator.finalize_registration(), host_names(found)
    assignments = []
    for rank, where in enumerate(found):
        gpus = [gpu for other in found if other.node_id == where.node_id for gpu in other.gpus]
        place = Place(rank, len(found), hosts[rank])
        variables = {**environment.of_place(*place), **numbers[rank], **visible_gpus(gpus)}
        variables.update({**nics_to_env_var(nics), **(more or {})})
        texts = {name: str(value) for name, value in variables.items()}
        assignments.append(Assignment(place, texts, list(sys.path)))
    return assignments


def take(invitation: str, assignment: Assignment) -> None:
    """Takes a place, for the next `hvd.init()` of this process."""
    missing = [folder for folder in assignment.path if folder not in sys.path]
    sys.path.extend(missing)
    environment.update({**environment.of_meeting(invitation), **assignment.variables})
    use_rendezvous(invitation, *assignment.place)


def host_names(found: Sequence[Where]) -> list[str]:
    """The host of each rank: its machine, or its Ray node where a machine has several."""
    nodes: dict[str, set[str]] = {}
    for where in found:
        nodes.setdefault(where.hostname, set()).add(where.node_id)
    return [
        where.hostname
        if len(nodes[where.hostname]) == 1
        else f"{where.hostname}-{where.node_id[:8]}"
        for where in found
    ]


def visible_gpus(gpus: Collection[str]) -> dict[str, str]:
    """The variable with which each rank sees all GPUs of its node's ranks, in the same order."""
    ordered = sorted(set(gpus), key=lambda gpu: (len(gpu), gpu))
    return {"CUDA_VISIBLE_DEVICES": ",".join(ordered)} if ordered else {}


def nics_to_env_var(nics: Collection[str]) -> dict[str, str]:
    """The variable that has NCCL use these interfaces; none if there are none."""
    names = sorted(nics)
    return {"NCCL_SOCKET_IFNAME": ",".join(names)} if names else {}
