"""Measures fusion thresholds: `horovodrun -np 2 python bench/fusion.py`.

A step reduces the 161 gradients of ResNet-50, 97 MB. `at once` submits all of them and waits, like
a program whose backward pass is over; `overlapped` computes a little before each, as during a
backward pass. Every threshold needs its own world; rounds of all thresholds alternate, so that
other work on the machine affects all of them.
"""

import argparse
import os
import statistics
import time

import torch

import horovod.torch as hvd
from horovod._bench.models import resnet50

MEGABYTES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def main():
    options = parse()
    torch.set_num_threads(1)
    gradients = [torch.zeros(elements) for elements in resnet50()]
    work = torch.ones(96, 96)
    ways = {"at once": None, "overlapped": work}
    seconds = {(way, size): [] for way in ways for size in MEGABYTES}
    for number in range(options.rounds):
        for size in MEGABYTES if number % 2 else reversed(MEGABYTES):
            os.environ["HOROVOD_FUSION_THRESHOLD"] = str(size << 20)
            hvd.init()
            for way, work in ways.items():
                # The first steps carry descriptions and open connections.
                timed(gradients, work, 2)
                seconds[way, size].append(timed(gradients, work, options.steps))
            ranks, is_first = hvd.size(), hvd.rank() == 0
            hvd.barrier()
            hvd.shutdown()
    if is_first:
        show(seconds, ways, ranks)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=5)
    return parser.parse_args()


def timed(gradients, work, steps):
    hvd.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        handles = []
        for number, gradient in enumerate(gradients):
            if work is not None:
                work @ work
            handle = hvd.allreduce_async_(gradient, op=hvd.Sum, name=f"gradient.{number}")
            handles.append(handle)
        for handle in handles:
            hvd.synchronize(handle)
    return (time.perf_counter() - start) / steps


def show(seconds, ways, ranks):
    print(f"one step of ResNet-50's gradients, {ranks} ranks; ms, median (p10 - p90)\n")
    print(f"{'threshold':>10}" + "".join(f"{way:^28}" for way in ways))
    for size in MEGABYTES:
        columns = [spelled(sorted(seconds[way, size])) for way in ways]
        print(f"{size:>7} MB" + "".join(f"{column:^28}" for column in columns))


def spelled(ordered):
    tenth = len(ordered) // 10
    low, middle, high = ordered[tenth], statistics.median(ordered), ordered[-1 - tenth]
    return f"{1e3 * middle:.1f} ({1e3 * low:.1f} - {1e3 * high:.1f})"


if __name__ == "__main__":
    main()
