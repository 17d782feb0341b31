"""Compares whole training steps with DistributedDataParallel: `python bench/training.py`.

For each number of ranks it runs one job, in which every rank holds a copy of the same network for
each way to train it: `alone` does not communicate and is the limit; `Ronde` is
`hvd.DistributedOptimizer`, as it is and with gradients that are kept (in the arena); the others are
DistributedDataParallel over our backend and over gloo. Rounds of all ways alternate, and each goes
first in turn, so that other work on the machine affects all of them. The figure of a round is the
time per step on the slowest rank; each rank has one thread.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import figures
import torch
import torch.distributed as dist
from job import launcher
from networks import NETWORKS
from record import RESULTS, processor
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import horovod.torch as hvd

LIMIT = "alone"
PEER = "DDP, gloo"


def main():
    options = parse()
    if "HOROVOD_RANK" in os.environ:
        measure(options)
        return
    for ranks in options.ranks:
        run(ranks, options)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument(
        "--models", nargs="+", default=["cnn", "transformer", "vgg"], choices=NETWORKS
    )
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--steps", type=int, default=3, help="steps in a round of each way")
    parser.add_argument("--json", type=Path, help="a file for all rounds")
    parser.add_argument("--save", action="store_true", help="keep it under bench/results")
    return parser.parse_args()


def run(ranks, options):
    """Starts the job for a number of ranks, and keeps its output if asked to."""
    stem = RESULTS / f"training-{processor()}-{ranks}"
    file = stem.with_name(stem.name + ".json") if options.save else options.json
    command = [launcher(), "-np", str(ranks), sys.executable, __file__]
    command += ["--models", *options.models, "--rounds", str(options.rounds)]
    command += ["--steps", str(options.steps)] + (["--json", str(file)] if file else [])
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    job = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if job.returncode != 0:
        sys.exit(job.returncode)
    table = job.stdout.replace("[0]<stdout>:", "")
    print(table, end="", flush=True)
    if options.save:
        stem.with_name(stem.name + ".md").write_text(table)


def measure(options):
    """Runs on each rank."""
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("gloo")
    ours = dist.new_group(backend="ronde")
    load = os.getloadavg()[0]
    results = {}
    for model in options.models:
        ways = prepare(NETWORKS[model], ours)
        results[model] = rounds(ways, options)
        del ways
    if hvd.rank() == 0:
        machine = {"processor": processor(), "cores": len(os.sched_getaffinity(0)), "load": load}
        machine |= {"torch": torch.__version__, "python": platform.python_version()}
        show(results, machine)
        if options.json:
            whole = {"ranks": hvd.size(), "machine": machine, "seconds": results}
            figures.save(options.json, whole)
    dist.destroy_process_group()


def prepare(network, ours):
    """A function for each way that makes one step with its own network."""
    plain = {"set_to_none": True}
    return {
        LIMIT: step_of(network, lambda model, optimizer: (model, optimizer), plain),
        "Ronde": step_of(network, distributed_optimizer, plain),
        "Ronde, kept": step_of(network, distributed_optimizer, {"set_to_none": False}),
        "DDP, ronde": step_of(network, data_parallel(ours), plain),
        PEER: step_of(network, data_parallel(None), plain),
    }


def step_of(network, wrap, clearing):
    torch.manual_seed(1)
    model, inputs, targets = network()
    model, optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=1e-3))

    def step():
        optimizer.zero_grad(**clearing)
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def distributed_optimizer(model, optimizer):
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def data_parallel(group):
    def wrap(model, optimizer):
        return DistributedDataParallel(model, process_group=group), optimizer

    return wrap


def rounds(ways, options):
    """Seconds per step of every round, by way."""
    seconds = {way: [] for way in ways}
    # The first rounds allocate, open connections and choose bucket orders.
    for number in range(-2, options.rounds):
        names = list(ways)
        turn = number % len(names)
        for way in names[turn:] + names[:turn]:
            taken = timed(ways[way], options.steps)
            if number >= 0:
                seconds[way].append(taken)
    return seconds


def timed(step, steps):
    hvd.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    own = torch.tensor((time.perf_counter() - start) / steps, dtype=torch.float64)
    return hvd.allreduce(own, op=hvd.Max, name="seconds").item()


def show(results, machine):
    """Prints a table with medians, the middle 80 %, and ratios of adjacent rounds."""
    cores, load = machine["cores"], machine["load"]
    print(f"# Training steps on {hvd.size()} ranks\n")
    print(f"{machine['processor']}, {cores} cores, load {load:.1f} before, one thread per rank;")
    print(f"PyTorch {machine['torch']}, Python {machine['python']}. Median (middle 80 %).\n")
    print("| model | way | ms per step | over alone | DDP over gloo takes |")
    print("| --- | --- | --- | --- | --- |")
    for model, seconds in results.items():
        for way, own in seconds.items():
            over = 100 * (ratio(own, seconds[LIMIT]) - 1)
            times = ratio(seconds[PEER], own)
            print(f"| {model} | {way} | {spelled(own)} | {over:+.1f} % | {times:.2f} times that |")


def ratio(one, other):
    return statistics.median(a / b for a, b in zip(one, other))


def spelled(seconds):
    ordered = sorted(1e3 * each for each in seconds)
    tenth = len(ordered) // 10
    low, high = ordered[tenth], ordered[-1 - tenth]
    return f"{statistics.median(ordered):.1f} ({low:.1f} - {high:.1f})"


if __name__ == "__main__":
    main()
