"""Measures what elastic training costs while nothing fails, on the ranks it is started with.

`horovodrun -np 2 python bench/elastic.py`. Rounds of three things alternate: training steps, checks
for changed hosts (`check_host_updates`), and commits. A commit every hundred steps costs a
hundredth of one.
"""

import argparse
import os
import statistics
import time

import networks
import torch
from torch import nn

import horovod.torch as hvd

NETWORKS = ("cnn", "transformer", "vgg")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    if hvd.rank() == 0:
        print(f"load {os.getloadavg()[0]:.1f} before; medians (middle 80 %), {hvd.size()} ranks")
        print(
            "| network | state | step | look | of a step | commit | of a step, each | every 100 |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in NETWORKS:
        measure(name, options)


def measure(name, options):
    model, images, labels = getattr(networks, name)()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, batch=0)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    parts = {
        "step": (step, options.steps),
        "look": (state.check_host_updates, 500),
        "commit": (state.commit, 10),
    }
    seconds = {part: [] for part in parts}
    for number in range(options.rounds + 1):
        for part, (work, times) in parts.items():
            taken = timed(work, times)
            # The first round warms up.
            if number:
                seconds[part].append(taken)
    if hvd.rank() == 0:
        show(name, size_of(state), seconds)


def timed(work, times):
    hvd.barrier()
    start = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - start) / times


def size_of(state):
    kept = state._handlers["model"]._saved.values()
    # Momenta are as large as the parameters.
    return sum(tensor.nbytes for tensor in kept) * 2 / 1e6


def show(name, megabytes, seconds):
    step, look, commit = (statistics.median(seconds[part]) for part in seconds)
    print(
        f"| {name} | {megabytes:.0f} MB | {spelled(seconds['step'], 1e3)} ms "
        f"| {spelled(seconds['look'], 1e6)} µs | {look / step:.3%} "
        f"| {spelled(seconds['commit'], 1e3)} ms | {commit / step:.1%} "
        f"| {commit / step / 100:.2%} |",
        flush=True,
    )


def spelled(seconds, unit):
    ordered = sorted(unit * each for each in seconds)
    tenth = len(ordered) // 10
    low, high = ordered[tenth], ordered[-1 - tenth]
    return f"{statistics.median(ordered):.3g} ({low:.3g} to {high:.3g})"


if __name__ == "__main__":
    main()
