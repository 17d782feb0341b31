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
    Path(config["folder"], f"rank-{hvd.rank()}").write_text(str(total))


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


def scaling():
    from ray.train import ScalingConfig

    return ScalingConfig(num_workers=2)


def totals(folder):
    return [(folder / f"rank-{rank}").read_text() for rank in range(2)]


def test_horovod_trainer_has_its_old_signature(run_config, tmp_path):
    from horovod.ray.train import HorovodConfig, HorovodTrainer

    HorovodTrainer(
        train,
        train_loop_config={"folder": str(tmp_path), "fails": None},
        horovod_config=HorovodConfig(timeout_s=60),
        scaling_config=scaling(),
        run_config=run_config(),
    ).fit()
    assert totals(tmp_path) == ["2.0", "2.0"]


@pytest.mark.long
@pytest.mark.parametrize("fails", ["kill", "raise"])
def test_workers_are_ranks_again_after_a_restart(run_config, tmp_path, fails):
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    from horovod.ray.train import RondeConfig

    DataParallelTrainer(
        train,
        train_loop_config={"folder": str(tmp_path), "fails": fails},
        backend_config=RondeConfig(),
        scaling_config=scaling(),
        run_config=run_config(failures=1),
    ).fit()
    assert (tmp_path / "first").exists() and totals(tmp_path) == ["2.0", "2.0"]


@pytest.mark.long
def test_what_a_worker_raised_ends_the_training(run_config, tmp_path):
    from ray.train import TrainingFailedError

    from horovod.ray.train import HorovodTrainer

    trainer = HorovodTrainer(
        train,
        train_loop_config={"folder": str(tmp_path), "fails": "raise"},
        scaling_config=scaling(),
        run_config=run_config(),
    )
    with pytest.raises(TrainingFailedError, match="KeyError: 'missing'"):
        trainer.fit()
