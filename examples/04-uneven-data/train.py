"""Trains on ranks with different amounts of data: a rank that is done joins, the others continue.

`python train.py` or `horovodrun -np 2 python train.py`. A line is fitted to points; rank 0 has the
fewest points, and each rank has that many more than the one before.
"""

import argparse

import torch
from torch import nn

import horovod.torch as hvd

SLOPES = torch.tensor([[2.0], [-3.0], [0.5]])


def main():
    options = parse()
    hvd.init()
    torch.manual_seed(42)

    model = nn.Linear(3, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=options.lr),
        named_parameters=model.named_parameters(),
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    for epoch in range(options.epochs):
        own = batches(options.batches * (hvd.rank() + 1), epoch)
        for inputs, targets in own:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        print(f"epoch {epoch}: rank {hvd.rank()} had {len(own)} batches", flush=True)
        # From here on this rank contributes zeros to the reductions of the others, until all join.
        last = hvd.join()
        # Ranks that joined earlier have missed the last steps of the others.
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: rank {last} was the last", flush=True)

    error = (model.weight.detach().T - SLOPES).abs().max().item()
    worst = hvd.allreduce(torch.tensor(error), op=hvd.Max, name="error").item()
    if hvd.rank() == 0:
        print(f"the slopes are {error:.3f} off, and nowhere more than {worst:.3f}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batches", type=int, default=20, help="batches that rank 0 has")
    parser.add_argument("--lr", type=float, default=0.1)
    return parser.parse_args()


def batches(count, epoch):
    generator = torch.Generator().manual_seed(1000 * epoch + hvd.rank())
    inputs = torch.randn(count, 16, 3, generator=generator)
    return list(zip(inputs, inputs @ SLOPES))


if __name__ == "__main__":
    main()
