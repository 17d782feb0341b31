"""A strategy for Lightning's Trainer whose gradients are averaged by the engine.

It is Lightning's own strategy of DistributedDataParallel over the backend `ronde`, and not our
DistributedOptimizer: accumulation, precision plugins, manual optimization and synchronized batch
norms are then what Lightning tests, and wrapping a user's optimizers behind its back is not needed.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy

from horovod.lightning.environment import RondeEnvironment
from horovod.torch import local_size, size
from horovod.torch.distributed import NAME


class RondeStrategy(DDPStrategy):
    """`Trainer(strategy=RondeStrategy(), accelerator="cpu")` under `horovodrun -np N`.

    The launcher says how many ranks there are; the Trainer's `devices` need not. Further options
    are those of Lightning's `DDPStrategy` and of `DistributedDataParallel`.
    """

    strategy_name = NAME

    def __init__(self, **options: Any) -> None:
        options.setdefault("cluster_environment", RondeEnvironment())
        super().__init__(process_group_backend=NAME, **options)

    @property
    def root_device(self) -> torch.device:
        """The device of this rank: its CPU."""
        devices = {device.type for device in self.parallel_devices or []}
        if not devices <= {"cpu"}:
            raise ValueError(
                f"RondeStrategy trains on CPUs in this release, but the Trainer has chosen "
                f'{sorted(devices)}; give it accelerator="cpu"'
            )
        return torch.device("cpu")

    @property
    def num_processes(self) -> int:
        """The number of ranks on this host."""
        return local_size()

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """How samplers deal out the data."""
        return {"num_replicas": size(), "rank": self.global_rank}
