"""Ray Train on Ronde: `DataParallelTrainer(train, backend_config=RondeConfig())`.

The workers of Ray Train are the ranks. The backend gives them their places before the training
function starts, and again whenever Ray Train has started them anew; the function calls
`hvd.init()` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig

from horovod import _native
from horovod.common.rendezvous import open_rendezvous
from horovod.common.world import shutdown
from horovod.ray import places

try:
    from ray.train.v2._internal.constants import is_v2_enabled
except ImportError:
    _IS_V2 = False
else:
    _IS_V2 = is_v2_enabled()

if _IS_V2:
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
else:
    # Older versions of Ray, and newer ones with RAY_TRAIN_V2_ENABLED=0.
    from ray.train.data_parallel_trainer import (  # type: ignore[assignment, unused-ignore]
        DataParallelTrainer,
    )

__all__ = ["HorovodConfig", "HorovodTrainer", "RondeConfig"]


@dataclass
class RondeConfig(BackendConfig):
    """Make the workers of a `DataParallelTrainer` the ranks of a world.

    Args:
        nics: Network interfaces for NCCL (default: it chooses).

    Example:
        ```python
        import ray.train
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

        from horovod.ray.train import RondeConfig


        def train():
            import horovod.torch as hvd

            hvd.init()
            ray.train.report({"rank": hvd.rank()})


        trainer = DataParallelTrainer(
            train,
            backend_config=RondeConfig(),
            scaling_config=ray.train.ScalingConfig(num_workers=2),
        )
        ```
    """

    nics: Collection[str] | None = None

    @property
    def backend_cls(self) -> type[Backend]:
        """The backend, for Ray Train."""
        return _RondeBackend


@dataclass
class HorovodConfig(RondeConfig):
    """The configuration of `HorovodTrainer`, with the fields that it had in Ray.

    Only `nics` has an effect.

    Args:
        verbose: Accepted for compatibility, as all that follow (default: 1).
        key: Every world makes its own key (default: None).
        ssh_port: Nothing uses ssh (default: None).
        ssh_identity_file: The same (default: None).
        ssh_str: The same; it is never written to a file (default: None).
        timeout_s: Ray Train limits how long workers may take to start (default: 300).
        placement_group_timeout_s: The same (default: 100).
    """

    verbose: int = 1
    key: str | None = None
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    ssh_str: str | None = None
    timeout_s: int = 300
    placement_group_timeout_s: int = 100


class _RondeBackend(Backend):
    """Gives the workers their places; Ray Train calls it in its controller."""

    # Ranks choose their GPU by `hvd.local_rank()`.
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        """Has the workers meet, before each attempt."""
        worker_group.execute(_leave)
        nics = getattr(backend_config, "nics", None) or ()
        assignments = places.assign(worker_group.execute(_where), nics)
        invitation = worker_group.execute_single(0, open_rendezvous, len(assignments))
        taking = [
            worker_group.execute_single_async(rank, places.take, invitation, assignment)
            for rank, assignment in enumerate(assignments)
        ]
        ray.get(taking)

    def on_shutdown(self, worker_group: Any, backend_config: BackendConfig) -> None:
        """Has the workers leave the world."""
        worker_group.execute(_leave)


def _where() -> places.Where:
    # Ray Train numbers the workers of an address together, and its local ranks should be ours.
    return places.here()._replace(node_id=ray.util.get_node_ip_address())


def _leave() -> None:
    if _native.is_initialized():
        shutdown()


class HorovodTrainer(DataParallelTrainer):
    """Ray's `HorovodTrainer` as it was: a `DataParallelTrainer` whose workers are ranks.

    Args:
        train_loop_per_worker: The training function; it calls `hvd.init()` itself.
        train_loop_config: Its argument, if it takes one (default: None).
        horovod_config: A `HorovodConfig` of this module or of `ray.train.horovod` (default: None).
        scaling_config: Number of workers and their resources (default: None).
        dataset_config: How datasets are split among the workers (default: None).
        run_config: Storage, failures and the like (default: None).
        datasets: Datasets of Ray Data by name (default: None).
        metadata: Accepted where this version of Ray Train accepts it (default: None).
        resume_from_checkpoint: The same (default: None).
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        horovod_config: Any = None,
        scaling_config: Any = None,
        dataset_config: Any = None,
        run_config: Any = None,
        datasets: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Any = None,
    ) -> None:
        given = {"metadata": metadata, "resume_from_checkpoint": resume_from_checkpoint}
        others: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        super().__init__(
            train_loop_per_worker,
            train_loop_config=None if train_loop_config is None else dict(train_loop_config),
            backend_config=RondeConfig(getattr(horovod_config, "nics", None)),
            scaling_config=scaling_config,
            dataset_config=dataset_config,
            run_config=run_config,
            datasets=None if datasets is None else dict(datasets),
            **others,
        )
