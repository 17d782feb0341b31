"""Measures jobs on Ray: `python bench/ray_jobs.py`, on a cluster of two nodes that it starts here.

Start: the time from the call to the results of ranks that join and reduce one number, compared with
Ray Train's TorchTrainer (gloo, and one reduction) in alternating rounds. `bare` imports no
framework. Elastic: the longest time without a step on rank 0 when a node with a rank is killed, and
when another one has been added.
"""

import argparse
import logging
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import ray
from figures import save
from ray.cluster_utils import Cluster
from record import RESULTS, processor


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5, help="of starts, after one more; or 0")
    parser.add_argument("--losses", type=int, default=3, help="how often a node is killed")
    parser.add_argument("--save", action="store_true", help="keep it under bench/results")
    options = parser.parse_args()
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    half = (options.ranks + 1) // 2
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": half + 1, "include_dashboard": False}
    )
    try:
        cluster.add_node(num_cpus=half)
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        starts = measure_starts(options.ranks, options.rounds)
        gaps = measure_gaps(cluster, options.losses)
    finally:
        ray.shutdown()
        cluster.shutdown()
    text = table(options.ranks, starts, gaps)
    print(text, end="")
    if options.save:
        stem = RESULTS / f"ray-{processor()}"
        stem.with_suffix(".md").write_text(f"# Jobs on Ray\n\n{text}")
        measured = {name: each for name, each in starts.items() if each}
        save(stem.with_suffix(".json"), {"start": measured, "without a step": gaps})


def bare():
    import numpy as np

    import horovod.raw as hvd

    hvd.init()
    return float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])


def torch_ronde():
    import torch

    import horovod.torch as hvd

    hvd.init()
    return float(hvd.allreduce(torch.ones(1), op=hvd.Sum)[0])


def torch_gloo():
    import torch
    import torch.distributed as dist

    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones.item() == dist.get_world_size()


def execute(function, ranks):
    from horovod.ray import RayExecutor

    executor = RayExecutor(RayExecutor.create_settings(300), num_workers=ranks)
    executor.start()
    assert executor.run(function) == [float(ranks)] * ranks
    executor.shutdown()


def fit(ranks, folder, ours):
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from horovod.ray.train import HorovodTrainer

    scaling, run = ScalingConfig(num_workers=ranks), RunConfig(storage_path=folder)
    if ours:
        HorovodTrainer(torch_ronde_checked, scaling_config=scaling, run_config=run).fit()
    else:
        TorchTrainer(torch_gloo, scaling_config=scaling, run_config=run).fit()


def torch_ronde_checked():
    import horovod.torch as hvd

    assert torch_ronde() == hvd.size()


def measure_starts(ranks, rounds):
    with tempfile.TemporaryDirectory() as folder:
        ways = {
            "bare, RayExecutor": lambda: execute(bare, ranks),
            "torch, RayExecutor": lambda: execute(torch_ronde, ranks),
            "torch, HorovodTrainer": lambda: fit(ranks, folder, ours=True),
            "torch, TorchTrainer": lambda: fit(ranks, folder, ours=False),
        }
        seconds = {name: [] for name in ways}
        names = list(ways)
        for number in range(rounds + 1 if rounds else 0):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                start = time.perf_counter()
                ways[name]()
                # The first round warms up.
                if number > 0:
                    seconds[name].append(time.perf_counter() - start)
            print(f"start: round {number} of {rounds}", file=sys.stderr)
    return seconds


def steps(folder):
    import numpy as np

    import horovod.raw as hvd
    from horovod.common.elastic import ObjectState, rejoin, run_fn
    from horovod.common.objects import broadcast_object
    from horovod.ray import ray_logger

    def train(state):
        while True:
            stop = np.array([float(Path(folder, "stop").exists())])
            if hvd.allreduce(stop, op=hvd.Max, name="stop")[0]:
                return
            ray_logger.log((hvd.size(), time.monotonic()))
            state.commit()
            time.sleep(0.02)

    hvd.init()
    run_fn(train, rejoin)(ObjectState(broadcast_object, hvd.rank))


class Losses:
    """Kills a node whenever all ranks have made some steps together, and adds it again later."""

    SOME = 50

    def __init__(self, cluster, folder, count):
        self.cluster, self.folder, self.count = cluster, folder, count
        self.node = cluster.add_node(num_cpus=2)
        self.steps, self.since = [], 0

    def __call__(self, logged):
        size, _ = logged
        self.since = self.since + 1 if self.steps and self.steps[-1][0] == size else 0
        self.steps.append(logged)
        if self.since != self.SOME:
            return
        if size == 3 and self.count == 0:
            Path(self.folder, "stop").touch()
        elif size == 3:
            self.count -= 1
            self.cluster.remove_node(self.node, allow_graceful=False)
        elif size == 2:
            self.node = self.cluster.add_node(num_cpus=2)

    def gaps(self):
        pairs = [*zip(self.steps, self.steps[1:])]
        change = {"a node is killed": (3, 2), "another has been added": (2, 3)}
        return {
            name: [later - earlier for (a, earlier), (b, later) in pairs if (a, b) == sizes]
            for name, sizes in change.items()
        }


def measure_gaps(cluster, count):
    from horovod.ray import RayExecutor

    with tempfile.TemporaryDirectory() as folder:
        losses = Losses(cluster, folder, count)
        executor = RayExecutor(
            RayExecutor.create_settings(), min_workers=2, max_workers=3, cpus_per_worker=2
        )
        executor.start()
        executor.run(steps, args=[folder], callbacks=[losses])
        cluster.remove_node(losses.node)
    return losses.gaps()


def table(ranks, starts, gaps):
    load = os.getloadavg()[0]
    lines = [
        f"{processor()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, "
        f"Ray {ray.__version__}, load {load:.1f}. Seconds: median (least to most).",
        *rows(f"{ranks} ranks on two nodes, from the call to the results", starts),
        *rows("3 ranks on three nodes, without a step when", gaps),
    ]
    return "\n".join(lines) + "\n"


def rows(title, seconds):
    measured = {name: each for name, each in seconds.items() if each}
    if not measured:
        return []
    lines = [f"| {name} | {spread(each)} |" for name, each in measured.items()]
    return ["", f"| {title} | seconds |", "| --- | --- |", *lines]


def spread(each):
    return f"{statistics.median(each):.3g} ({min(each):.3g} to {max(each):.3g}, {len(each)} times)"


if __name__ == "__main__":
    main()
