"""Ranks, hosts and the meeting of ranks that somebody else's actors are.

`RayExecutor` numbers its actors with it. Programs that make their own actors also have it open the
meeting in their process, and set the variables it returns in the actors.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from horovod.common import environment
from horovod.common.rendezvous import open_rendezvous

__all__ = ["Coordinator"]


class Coordinator:
    """Number the ranks of each node, and let them meet.

    Args:
        settings: Accepted for compatibility with Horovod (default: None).
    """

    def __init__(self, settings: Any = None) -> None:
        self.settings = settings
        self.node_id_by_rank: dict[str, list[int]] = defaultdict(list)
        """The ranks of each node, by its id."""
        self.hostnames_by_rank: dict[str, list[int]] = defaultdict(list)
        """The ranks of each machine, by its name."""
        self.global_rendezv_port: int | None = None
        """The port of the meeting, once it is open."""

    @property
    def world_size(self) -> int:
        """Number of ranks that have been registered."""
        return sum(len(ranks) for ranks in self.node_id_by_rank.values())

    @property
    def hostnames(self) -> list[str]:
        """The names of the machines."""
        return list(self.hostnames_by_rank)

    @property
    def hoststring(self) -> str:
        """Machines and their ranks, such as `node-a:2,node-b:2`."""
        return _listed(self.hostnames_by_rank)

    @property
    def node_id_string(self) -> str:
        """Ids of nodes and their ranks, such as `1f0a:2,77b2:2`."""
        return _listed(self.node_id_by_rank)

    def register(self, hostname: str, node_id: str, world_rank: int) -> None:
        """Register a rank.

        Args:
            hostname: The name of its machine.
            node_id: The id of its Ray node; a node is a host of the job.
            world_rank: The rank.
        """
        self.hostnames_by_rank[hostname].append(world_rank)
        self.node_id_by_rank[node_id].append(world_rank)

    def finalize_registration(self) -> dict[int, dict[str, int]]:
        """Return the place of every rank.

        Returns:
            By rank: its local rank and cross rank and their sizes, under the names of Horovod's
            variables.
        """
        nodes = list(self.node_id_by_rank.values())
        places = {}
        for ranks in nodes:
            for local, rank in enumerate(ranks):
                peers = [other for other in nodes if len(other) > local]
                places[rank] = {
                    "HOROVOD_CROSS_RANK": peers.index(ranks),
                    "HOROVOD_CROSS_SIZE": len(peers),
                    "HOROVOD_LOCAL_RANK": local,
                    "HOROVOD_LOCAL_SIZE": len(ranks),
                }
        return places

    def establish_rendezvous(self) -> dict[str, str]:
        """Open the meeting in this process, which must stay alive until all ranks have joined.

        Returns:
            Variables for the environment of every rank. They contain the key of the job: set them
            in the actors, and print them nowhere.

        Raises:
            ValueError: If no rank is registered, or this process cannot listen.
        """
        variables = environment.of_meeting(open_rendezvous(self.world_size))
        self.global_rendezv_port = int(variables["HOROVOD_GLOO_RENDEZVOUS_PORT"])
        return variables


def _listed(ranks: dict[str, list[int]]) -> str:
    return ",".join(f"{name}:{len(each)}" for name, each in ranks.items())
