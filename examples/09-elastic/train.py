"""Trains a small network to read handwritten digits while ranks join, leave and die.

`python train.py`, or with ranks that may change:
`horovodrun -np 2 --min-np 1 --host-discovery-script ./discover_hosts.sh python train.py`. The 1,797
images come with scikit-learn.
"""

import argparse
import hashlib

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import horovod.torch as hvd

TEST_IMAGES = 360


def main():
    options = parse()
    hvd.init()
    torch.manual_seed(42)

    images, test = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(24 * 4 * 4, 96),
        nn.ReLU(),
        nn.Linear(96, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(images)
    loader = DataLoader(images, batch_size=options.batch_size, sampler=sampler)

    # Everything that another rank needs to continue. Nothing is broadcast here: a new rank may
    # reach this line while the others are in the middle of an epoch.
    state = hvd.elastic.TorchState(
        model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0
    )

    def adapt():
        for group in optimizer.param_groups:
            group["lr"] = options.lr * hvd.size()

    state.register_reset_callbacks([adapt])
    train(state, loader, test, options)
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks at the end, parameters {fingerprint(model)}")


@hvd.elastic.run
def train(state, loader, test, options):
    """Called again, with the state of the last commit, whenever the ranks have changed."""
    while state.epoch < options.epochs:
        train_epoch(state, loader, options)
        accuracy = measure(state.model, test)
        if hvd.rank() == 0:
            print(f"epoch {state.epoch}: {hvd.size()} ranks, accuracy {accuracy:.3f}", flush=True)
        state.epoch += 1
        state.batch = 0
        state.sampler.set_epoch(state.epoch)
        state.commit()


def train_epoch(state, loader, options):
    state.model.train()
    for images, labels in loader:
        state.optimizer.zero_grad()
        nn.functional.cross_entropy(state.model(images), labels).backward()
        state.optimizer.step()
        state.sampler.record_batch(state.batch, options.batch_size)
        state.batch += 1
        if state.batch % options.batches_per_commit == 0:
            state.commit()


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank")
    parser.add_argument(
        "--batches-per-commit", type=int, default=10, help="a lost rank costs at most this many"
    )
    return parser.parse_args()


def digits():
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.tensor(labels)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return TensorDataset(images[train], labels[train]), (images[test], labels[test])


@torch.no_grad()
def measure(model, test):
    """The share of test images that are read correctly; each rank reads some of them."""
    model.eval()
    images, labels = (tensor[hvd.rank() :: hvd.size()] for tensor in test)
    correct = (model(images).argmax(1) == labels).float().sum()
    return hvd.allreduce(correct, op=hvd.Sum, name="correct").item() / TEST_IMAGES


def fingerprint(model):
    data = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    return hashlib.sha256(data).hexdigest()[:12]


if __name__ == "__main__":
    main()
