"""Trains with PyTorch's own DistributedDataParallel, over the same engine as Horovod's interface.

`python train.py` or `horovodrun -np 2 python train.py`. Only the name of the backend is specific to
Ronde: `--backend gloo` runs the same program over PyTorch's own backend.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import horovod.torch  # noqa: F401  (registers the backend with older PyTorch)


def main():
    options = parse()
    start(options.backend)
    torch.manual_seed(42 + dist.get_rank())

    # The wrapper copies the model of rank 0 to all ranks.
    model = DistributedDataParallel(
        nn.Sequential(
            nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)
        )
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    begin = time.perf_counter()
    for step in range(1, options.steps + 1):
        rows = torch.randn(options.batch_size, 32)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), rows.abs().sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        if step % options.report_every == 0:
            say(f"step {step}: loss {average(loss.detach()):.3f}")
    seconds = time.perf_counter() - begin

    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    gathered = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, weights)
    equal = all(torch.equal(weights, other) for other in gathered)
    ranks = f"{dist.get_world_size()} rank" + "s" * (dist.get_world_size() > 1)
    say(f"{ranks} over {dist.get_backend()}: {options.steps / seconds:.0f} steps/s")
    say(f"parameters are {'the same, bit for bit,' if equal else 'NOT the same'} on all ranks")
    dist.destroy_process_group()


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="ronde", choices=("ronde", "gloo"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64, help="rows per rank and step")
    parser.add_argument("--report-every", type=int, default=50)
    return parser.parse_args()


def start(backend):
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        # Without a launcher there is only one rank, and no address is set.
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def average(value):
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def say(line):
    if dist.get_rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()
