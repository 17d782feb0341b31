"""The rank, size and addresses that horovodrun sets, in the form that Lightning expects."""

from __future__ import annotations

import os

from lightning.fabric.plugins.environments import ClusterEnvironment

from horovod.common import environment
from horovod.torch import cross_rank, init, local_rank, rank, size

__all__ = [
    "RondeEnvironment",
]


class RondeEnvironment(ClusterEnvironment):
    """Provides Lightning with the rank, size and addresses of a `horovodrun` job.

    Without a launcher it is a job of one rank. `RondeStrategy` uses it.
    """

    def __init__(self) -> None:
        super().__init__()
        init()

    @property
    def creates_processes_externally(self) -> bool:
        """True: the launcher has started all ranks, so Lightning must not."""
        return True

    @property
    def main_address(self) -> str:
        """Address of the store of `torch.distributed`."""
        return os.environ.get("MASTER_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        """Port of that store; 0, for any, with a single rank."""
        return int(os.environ.get("MASTER_PORT", "0"))

    @staticmethod
    def detect() -> bool:
        """Return whether `horovodrun` has started this process.

        Returns:
            True if it has.
        """
        return environment.is_launched()

    def world_size(self) -> int:
        """Return the number of ranks in the job.

        Returns:
            The number of processes.
        """
        return size()

    def set_world_size(self, size: int) -> None:
        """Do nothing: the launcher has decided.

        Args:
            size: Ignored.
        """

    def global_rank(self) -> int:
        """Return the rank of this process in the job.

        Returns:
            A number from 0 to `world_size() - 1`.
        """
        return rank()

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the launcher has decided.

        Args:
            rank: Ignored.
        """

    def local_rank(self) -> int:
        """Return the rank of this process on its host.

        Returns:
            A number from 0 to the number of ranks of the host, exclusive.
        """
        return local_rank()

    def node_rank(self) -> int:
        """Return the rank of this host among the hosts that have this local rank.

        Returns:
            A number from 0 to the number of such hosts, exclusive.
        """
        return cross_rank()
