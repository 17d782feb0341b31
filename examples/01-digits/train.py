"""Trains a small network to read handwritten digits, on as many ranks as it is started with.

This is an ordinary Horovod script: `python train.py` or `horovodrun -np 2 python train.py`. The
1,797 images come with scikit-learn. Every rank trains on its own share of them.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

import horovod.torch as hvd

TEST_IMAGES = 360


def main():
    options = parse()
    hvd.init()
    torch.manual_seed(42)

    train, test = digits()
    sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank(), drop_last=True)
    loader = DataLoader(train, batch_size=options.batch_size, sampler=sampler, drop_last=True)

    model = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(48 * 4 * 4, 96),
        nn.ReLU(),
        nn.Linear(96, 10),
    )
    # Several ranks together process larger batches, so they can take larger steps.
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)

    seconds = []
    accuracy = 0.0
    with tqdm(total=options.epochs, unit="epoch", disable=hvd.rank() != 0) as progress:
        for epoch in range(options.epochs):
            sampler.set_epoch(epoch)
            start = time.perf_counter()
            train_epoch(model, optimizer, loader)
            seconds.append(time.perf_counter() - start)
            schedule.step()
            accuracy = measure(model, test)
            progress.set_postfix(accuracy=f"{accuracy:.3f}")
            progress.update()

    # The first epoch warms up; every rank trains on the same number of images.
    images = len(loader) * options.batch_size * hvd.size()
    rate = images * len(seconds[1:]) / sum(seconds[1:]) if seconds[1:] else 0.0
    if hvd.rank() == 0:
        ranks = "rank" if hvd.size() == 1 else "ranks"
        print(f"{hvd.size()} {ranks}: accuracy {accuracy:.3f}, {rate:,.0f} samples/s")
        if options.report:
            options.report.write_text(json.dumps({"accuracy": accuracy, "samples_per_s": rate}))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument("--report", type=Path, help="a file for the results, as JSON")
    return parser.parse_args()


def digits():
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.tensor(labels)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return TensorDataset(images[train], labels[train]), (images[test], labels[test])


def train_epoch(model, optimizer, loader):
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


@torch.no_grad()
def measure(model, test):
    """The share of test images that are read correctly; each rank reads some of them."""
    model.eval()
    images, labels = (tensor[hvd.rank() :: hvd.size()] for tensor in test)
    correct = (model(images).argmax(1) == labels).float().sum()
    return hvd.allreduce(correct, op=hvd.Sum, name="correct").item() / TEST_IMAGES


if __name__ == "__main__":
    main()
