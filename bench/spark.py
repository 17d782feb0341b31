"""Measures jobs on a Spark cluster of this machine: `python bench/spark.py`.

Start: the time from the call to its results, of a function whose ranks only join, compared with
`pyspark.ml.torch.distributor.TorchDistributor`, in the same session, in rounds that alternate.
Recovery: a job of four ranks takes a step every few milliseconds; one of its two executors dies
with everything in it, and comes back. How long the survivors take no step, and how long until four
ranks do.
"""

import argparse
import io
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from figures import save
from record import RESULTS, processor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/engines"))
from spark_cluster import SparkCluster, kill_container

RANKS = 4
LIMIT_SECONDS = 300


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="keep it under bench/results")
    options = parser.parse_args()
    os.environ.update(PYSPARK_PYTHON=sys.executable, OMP_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as folder, SparkCluster(folder) as cluster:
        with cluster.session() as session:
            start = measure_start(options.rounds)
        with cluster.session(task_maxFailures="1000") as session:
            recovery = measure_recovery(session, Path(folder), options.kills)
    text = table(start, recovery)
    print(text, end="")
    if options.save:
        stem = RESULTS / f"spark-{processor()}"
        stem.with_suffix(".md").write_text(f"# Jobs on Spark\n\n{text}")
        save(stem.with_suffix(".json"), {"start": start, "recovery": recovery})


def bare():
    """Joins without a framework."""
    import horovod.raw as hvd

    hvd.init()
    assert hvd.size() == RANKS
    hvd.barrier()


def torch():
    """Joins with torch."""
    import horovod.torch as hvd

    hvd.init()
    assert hvd.size() == RANKS
    hvd.barrier()


def gloo():
    """The same with torch's own process group."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    assert dist.get_world_size() == RANKS
    dist.barrier()
    dist.destroy_process_group()


def measure_start(rounds):
    """Seconds per way, each round beginning with another one."""
    from pyspark.ml.torch.distributor import TorchDistributor

    import horovod.spark

    ways = {
        "no framework, `horovod.spark.run`": lambda: horovod.spark.run(bare, num_proc=RANKS),
        "torch, `horovod.spark.run`": lambda: horovod.spark.run(torch, num_proc=RANKS),
        "torch, `TorchDistributor`": lambda: TorchDistributor(
            num_processes=RANKS, local_mode=False, use_gpu=False
        ).run(gloo),
    }
    seconds, names = {name: [] for name in ways}, list(ways)
    for number in range(rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            began = time.perf_counter()
            ways[name]()
            # The first round warms up.
            if number:
                seconds[name].append(time.perf_counter() - began)
        print(f"start: round {number} of {rounds}", file=sys.stderr)
    return seconds


def train(folder):
    """Takes steps until there is a file `end`; rank 0 writes down when each was done, and by how
    many ranks."""
    import numpy as np

    import horovod.raw as hvd
    from horovod.common.elastic import ObjectState, rejoin, run_fn
    from horovod.common.objects import broadcast_object

    hvd.init()
    state = ObjectState(broadcast_object, hvd.rank, step=0)

    def steps(state):
        with open(f"{folder}/steps.jsonl", "a", buffering=1) as file:
            while True:
                ended = np.array([os.path.exists(f"{folder}/end")], dtype=np.float32)
                if hvd.allreduce(ended, op=hvd.Max)[0]:
                    return hvd.rank()
                state.step += 1
                state.commit()
                if hvd.rank() == 0:
                    file.write(json.dumps([time.monotonic(), hvd.size()]) + "\n")
                time.sleep(0.005)

    return run_fn(steps, rejoin)(state)


def measure_recovery(session, folder, kills):
    """Seconds without a step, and until all ranks are back, for each executor that is killed."""
    import horovod.spark

    seconds = {"without a step": [], "until four ranks take steps": []}
    streams = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    arguments = {"num_proc": RANKS, "min_num_proc": 1, **streams}
    job = threading.Thread(
        target=horovod.spark.run_elastic, args=(train, (str(folder),)), kwargs=arguments
    )
    job.start()
    try:
        for number in range(kills):
            gap, back = kill_one(session, folder)
            seconds["without a step"].append(gap)
            seconds["until four ranks take steps"].append(back)
            print(f"kill {number + 1} of {kills}: {gap:.2f} s, {back:.2f} s", file=sys.stderr)
    finally:
        (folder / "end").touch()
        job.join(LIMIT_SECONDS)
    return seconds


def kill_one(session, folder):
    """Kills an executor while all ranks take steps; seconds without a step, and until all do."""
    wait_for(lambda: taken(folder)[-100:], lambda steps: all_ranks(steps, 100))
    killed = time.monotonic()
    kill_container(session)
    steps = wait_for(
        lambda: [step for step in taken(folder) if step[0] > killed - 1],
        lambda steps: any(are_fewer(step, killed) for step in steps) and all_ranks(steps[-20:], 20),
    )
    fewer = next(step[0] for step in steps if are_fewer(step, killed))
    last = max(when for when, size in steps if when < fewer)
    back = next(when for when, size in steps if size == RANKS and when > fewer)
    return fewer - last, back - killed


def taken(folder):
    """The steps so far: when each was done, and by how many ranks."""
    file = folder / "steps.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


def are_fewer(step, killed):
    """Whether a step was taken without the ranks that were killed."""
    when, size = step
    return when > killed and size < RANKS


def all_ranks(steps, count):
    return len(steps) == count and all(size == RANKS for _, size in steps)


def wait_for(look, enough):
    end = time.monotonic() + LIMIT_SECONDS
    while not enough(found := look()):
        assert time.monotonic() < end, "the job takes no steps"
        time.sleep(0.02)
    return found


def table(start, recovery):
    import pyspark

    cpus, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    lines = [
        f"{processor()}, {cpus} cores, load {load:.1f} at the end; Python"
        f" {platform.python_version()}, Spark {pyspark.__version__}, two workers with two cores"
        f" each; {RANKS} ranks. Seconds: median (least to most).",
        "",
        "| | seconds |",
        "| --- | --- |",
    ]
    rows = {f"start: {name}": each for name, each in start.items()}
    rows.update({f"an executor dies: {name}": each for name, each in recovery.items()})
    for name, each in rows.items():
        spread = f"{min(each):.2f} to {max(each):.2f}, {len(each)} rounds"
        lines.append(f"| {name} | {statistics.median(each):.2f} ({spread}) |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
