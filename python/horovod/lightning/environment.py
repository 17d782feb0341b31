"""Where a rank stands, in Lightning's words: what horovodrun has told it."""

from __future__ import annotations

import os

from lightning.fabric.plugins.environments import ClusterEnvironment

from horovod.common import environment
from horovod.torch import cross_rank, init, local_rank, rank, size


class RondeEnvironment(ClusterEnvironment):
    """The ranks of a job that horovodrun has started; a world of one without it."""

    def __init__(self) -> None:
        super().__init__()
        init()

    @property
    def creates_processes_externally(self) -> bool:
        """Always: the launcher has started all ranks, so Lightning must not."""
        return True

    @property
    def main_address(self) -> str:
        """Where the ranks' store of torch.distributed listens."""
        return os.environ.get("MASTER_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        """The port of that store; any free one in a world of one."""
        return int(os.environ.get("MASTER_PORT", "0"))

    @staticmethod
    def detect() -> bool:
        """Whether horovodrun has started this process."""
        return environment.is_launched()

    def world_size(self) -> int:
        """The number of ranks."""
        return size()

    def set_world_size(self, size: int) -> None:
        """Does nothing: the launcher has decided."""

    def global_rank(self) -> int:
        """This process among all."""
        return rank()

    def set_global_rank(self, rank: int) -> None:
        """Does nothing: the launcher has decided."""

    def local_rank(self) -> int:
        """This process among those of its host."""
        return local_rank()

    def node_rank(self) -> int:
        """This host among all that have this local rank."""
        return cross_rank()
