"""A small model, batches and training steps, shared by the tests of optimizers."""

import torch
from frameworks.torch import DEVICE

import horovod.torch as hvd


def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Linear(16, 2)
    )


def batches(steps, per_rank=4):
    generator = torch.Generator(DEVICE).manual_seed(7)
    for _ in range(steps):
        whole = torch.randn(hvd.size() * per_rank, 6, generator=generator)
        yield whole, whole[hvd.rank() * per_rank : (hvd.rank() + 1) * per_rank]


def batch(rank, step):
    return torch.randn(4, 6, generator=torch.Generator(DEVICE).manual_seed(100 * rank + step))


def loss_of(model, data):
    return (model(data) - data[:, :2].sin()).square().mean()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(model, optimizer, steps, whole=False):
    losses = []
    for big, own in batches(steps):
        optimizer.zero_grad()
        loss = loss_of(model, big if whole else own)
        loss.backward()
        optimizer.step()
        losses.append(loss_of(model, big).item())
    return losses


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def assert_same_bits_everywhere(model):
    mine = flat(model)
    assert torch.equal(hvd.broadcast(mine, 0).view(torch.uint8), mine.view(torch.uint8))


def assert_continued_alike(one, other):
    if DEVICE == "cpu":
        assert torch.equal(one, other)
    else:
        # What NCCL rounds, and in which order it adds, depends on the rest of the bucket.
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)
