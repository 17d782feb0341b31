"""Measures what Python itself costs: `python bench/costs.py`.

How long `import horovod.torch` takes after `import torch`, in fresh interpreters; and what the hook
that submits a gradient costs, in a world of one in which every submission completes at once.
`whole` is the difference between backward passes of a network with many small parameters with and
without hooks; `Python alone` leaves the native module out.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from unittest.mock import patch

LAYERS = 100
IMPORTS = """
import time
start = time.perf_counter()
import torch
middle = time.perf_counter()
import horovod.torch
print(middle - start, time.perf_counter() - middle)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(f"load {os.getloadavg()[0]:.1f} before; median (middle 80 %)")
    imports(rounds)
    hooks(rounds)


def imports(rounds):
    seconds = []
    for _ in range(rounds):
        said = subprocess.check_output([sys.executable, "-c", IMPORTS], text=True)
        seconds.append([float(each) for each in said.split()])
    torch, ours = zip(*seconds)
    print(f"import torch: {spelled(torch, 1e3)} ms")
    print(f"import horovod.torch behind it: {spelled(ours, 1e3)} ms")


def hooks(rounds):
    import torch

    import horovod.torch as hvd
    from horovod import _native

    torch.set_num_threads(1)
    # A world of one has nothing to reduce, but an elastic one has hooks because it may grow.
    os.environ["HOROVOD_ELASTIC"] = "1"
    hvd.init()
    bare, _ = backward(torch, lambda model, optimizer: optimizer)
    hooked, optimizer = backward(
        torch,
        lambda model, optimizer: hvd.DistributedOptimizer(optimizer, model.named_parameters()),
    )
    gradients = list(optimizer._reducer._gradients.values())
    whole, python = [], []
    for _ in range(rounds):
        whole.append((hooked() - bare()) / len(gradients))
        optimizer.synchronize()
        with patch.object(_native, "allreduce", lambda *_: 0), patch.object(_native, "wait", int):
            start = time.perf_counter()
            for gradient in gradients:
                optimizer._reducer._computed(gradient)
            python.append((time.perf_counter() - start) / len(gradients))
            optimizer.synchronize()
    print(f"a hook, whole: {spelled(whole, 1e6)} µs per gradient")
    print(f"a hook, Python alone: {spelled(python, 1e6)} µs per gradient")


def backward(torch, wrap):
    """A function that times a backward pass, and the optimizer."""
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(LAYERS)))
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))

    def timed():
        loss = model(torch.ones(1, 4)).sum()
        start = time.perf_counter()
        loss.backward()
        return time.perf_counter() - start

    return timed, optimizer


def spelled(seconds, unit):
    ordered = sorted(unit * each for each in seconds)
    tenth = len(ordered) // 10
    low, high = ordered[tenth], ordered[-1 - tenth]
    return f"{statistics.median(ordered):.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
