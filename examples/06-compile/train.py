"""Trains a compiled model: `torch.compile` and a distributed optimizer together.

`python train.py` or `horovodrun -np 2 python train.py`. The hooks that submit gradients belong to
the parameters and stay outside the compiled code, so nothing else changes. The same steps are also
run without the compiler, for comparison.
"""

import argparse
import copy
import time

import torch
from torch import nn

import horovod.torch as hvd


def main():
    options = parse()
    hvd.init()
    torch.manual_seed(42)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256), nn.GELU(),
        nn.LayerNorm(256), nn.Linear(256, 1),
    )  # fmt: skip
    twin = copy.deepcopy(model)
    train(model, model, "plain", options)
    # Compiling returns another module with the same parameters.
    train(twin, torch.compile(twin, backend=options.backend), "compiled", options)

    pairs = zip(model.parameters(), twin.parameters())
    difference = max((one - other).abs().max().item() for one, other in pairs)
    worst = hvd.allreduce(torch.tensor(difference), op=hvd.Max, name="difference").item()
    say(f"compiled by {options.backend}, the parameters differ by {worst:.0e} at most")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64, help="rows per rank and step")
    parser.add_argument(
        "--backend",
        default="aot_eager",
        help="the compiler: `inductor` generates the fastest code and needs a C++ compiler",
    )
    return parser.parse_args()


def train(model, runs, name, options):
    """Trains the parameters of `model` by calling `runs`."""
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    generator = torch.Generator().manual_seed(hvd.rank())
    seconds = 0.0
    for step in range(options.steps):
        rows = torch.randn(options.batch_size, 64, generator=generator)
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(runs(rows), rows.sin().sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        # The first step compiles.
        if step > 0:
            seconds += time.perf_counter() - start
    loss = hvd.allreduce(loss.detach(), name="loss").item()
    say(f"{name}: loss {loss:.4f}, {1e3 * seconds / max(options.steps - 1, 1):.2f} ms per step")


def say(line):
    if hvd.rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()
