"""Ray Train: ranks are its workers, again after each restart."""

import os
import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray.train")


def train(config):
    import numpy as np
    import ray.train

    import horovod.raw as hvd

    hvd.init()
    context = ray.train.get_context()
    assert (hvd.rank(), hvd.size()) == (context.get_world_rank(), context.get_world_size())
    assert (hvd.local_rank(), hvd.local_size()) == (
        context.get_local_rank(),
        context.get_local_world_size(),
    )
    flag = Path(config["folder"], "first")
    if hvd.rank() == 1 and config["fails"] and not flag.exists():
        flag.touch()
        if config["fails"] == "raise":
            raise KeyError("missing")
        os.kill(os.getpid(), signal.SIGKILL)
    total = float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
    ray.train.report({"total": total, "rank": hvd.rank(), "host": os.environ["HOROVOD_HOSTNAME"]})


@pytest.fixture
def run_config(ray_cluster, tmp_path):
    import ray.cloudpickle
    from ray.train import FailureConfig, RunConfig

    # The workers do not look for modules where pytest does.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield lambda failures=0: RunConfig(
        storage_path=str(tmp_path), failure_config=FailureConfig(max_failures=failures)
    )
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_workers_are_ranks_again_after_one_was_killed(run_config, tmp_path):
    from ray.train import ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    from horovod.ray.train import RondeConfig

    trainer = DataParallelTrainer(
        train,
        train_loop_config={"folder": str(tmp_path), "fails": "kill"},
        backend_config=RondeConfig(),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=run_config(failures=1),
    )
    result = trainer.fit()
    assert (tmp_path / "first").exists()
    assert (result.metrics["total"], result.metrics["rank"]) == (2.0, 0)


def test_horovod_trainer_has_its_old_signature_and_raises_what_a_worker_raised(
    run_config, tmp_path
):
    from ray.train import ScalingConfig

    from horovod.ray.train import HorovodConfig, HorovodTrainer

    def fit(fails):
        return HorovodTrainer(
            train,
            train_loop_config={"folder": str(tmp_path), "fails": fails},
            horovod_config=HorovodConfig(timeout_s=60),
            scaling_config=ScalingConfig(num_workers=2, placement_strategy="SPREAD"),
            run_config=run_config(),
        ).fit()

    with pytest.raises(Exception, match="missing"):
        fit("raise")
    assert fit("raise").metrics["total"] == 2.0
