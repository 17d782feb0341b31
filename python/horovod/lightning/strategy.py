"""A strategy for Lightning's Trainer whose gradients are averaged by the engine.

It is Lightning's own DistributedDataParallel strategy over the backend `ronde`, and not our
DistributedOptimizer: so accumulation, precision plugins, manual optimization and synchronized batch
norms are those that Lightning tests, and users' optimizers need not be wrapped behind Lightning's
back.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy

from horovod.lightning.environment import RondeEnvironment
from horovod.torch import local_size, size
from horovod.torch.distributed import NAME

__all__ = [
    "RondeStrategy",
]


class RondeStrategy(DDPStrategy):
    """Strategy for Lightning's Trainer: DistributedDataParallel over the backend `ronde`.

    The launcher decides how many ranks there are; `devices` and `num_nodes` of the Trainer need not
    be given.

    Args:
        **options: Further arguments of Lightning's `DDPStrategy` and of `DistributedDataParallel`.

    Example:
        ```python
        import lightning.pytorch as pl
        from horovod.lightning import RondeStrategy

        trainer = pl.Trainer(strategy=RondeStrategy(), accelerator="cpu", logger=False)
        ```
    """

    strategy_name = NAME

    def __init__(self, **options: Any) -> None:
        options.setdefault("cluster_environment", RondeEnvironment())
        super().__init__(process_group_backend=NAME, **options)

    @property
    def root_device(self) -> torch.device:
        """Device of this rank: its CPU."""
        devices = {device.type for device in self.parallel_devices or []}
        if not devices <= {"cpu"}:
            raise ValueError(
                f"RondeStrategy trains on CPUs in this release, but the Trainer chose "
                f'{sorted(devices)}; give it accelerator="cpu"'
            )
        return torch.device("cpu")

    @property
    def num_processes(self) -> int:
        """Number of ranks on this host."""
        return local_size()

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Arguments for samplers: number of ranks, and this rank."""
        return {"num_replicas": size(), "rank": self.global_rank}
