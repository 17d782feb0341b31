"""Adasum in PyTorch: the optimizer that combines what each rank does to the weights."""

import pytest
import torch
from frameworks.torch import DEVICE
from world import adasum

import horovod.torch as hvd


def test_sparse_tensors_are_rejected():
    with pytest.raises(ValueError, match="sparse_as_dense=True"):
        hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), "sparse", hvd.Adasum)


def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def batch(step, rank):
    generator = torch.Generator(DEVICE).manual_seed(1000 * step + rank)
    return torch.randn(4, 6, generator=generator)


def train_step(model, optimizer, step, rank):
    optimizer.zero_grad()
    own = batch(step, rank)
    (model(own) - own[:, :2].sin()).square().mean().backward()
    optimizer.step()


INNER = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


@pytest.mark.parametrize("kind", INNER)
def test_the_optimizer_combines_what_each_rank_does_to_the_weights(kind):
    model = network()
    inner = INNER[kind](model.parameters())
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), op=hvd.Adasum)
    assert type(optimizer).__name__ == type(inner).__name__
    assert isinstance(optimizer, type(inner))
    assert "horovod" in str(type(optimizer))
    # Every rank simulates all ranks: each copy steps on its own, from the common weights.
    copies = [network() for _ in range(hvd.size())]
    steppers = [INNER[kind](copy.parameters()) for copy in copies]
    for step in range(5):
        train_step(model, optimizer, step, hvd.rank())
        before = [parameter.detach().clone() for parameter in copies[0].parameters()]
        for rank, (copy, stepper) in enumerate(zip(copies, steppers)):
            train_step(copy, stepper, step, rank)
        with torch.no_grad():
            for index, start in enumerate(before):
                replicas = [list(copy.parameters())[index] for copy in copies]
                delta = adasum([(replica - start).cpu().numpy() for replica in replicas])
                for replica in replicas:
                    replica.copy_(start + torch.from_numpy(delta).to(start))
    for ours, expected in zip(model.parameters(), copies[0].parameters()):
        assert torch.allclose(ours, expected, rtol=1e-4, atol=1e-6)
        assert torch.equal(hvd.broadcast(ours.detach(), 0), ours.detach())


def test_the_optimizer_keeps_ranks_together_when_gradients_are_missing():
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(
        inner, model.named_parameters(), compression=hvd.Compression.fp16, op=hvd.Adasum
    )
    part = model[0] if hvd.rank() == 0 else model
    part(batch(0, hvd.rank())).sum().backward()
    optimizer.synchronize()
    optimizer.step()
    for parameter in model.parameters():
        assert torch.equal(hvd.broadcast(parameter.detach(), 0), parameter.detach())
    with pytest.raises(AssertionError, match="not supported when using Adasum optimizer"):
        optimizer.skip_synchronize()
    with pytest.raises(ValueError, match="wrap it only once"):
        hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)


def test_a_failed_step_leaves_the_weights_as_they_were():
    parameter = torch.nn.Parameter(torch.ones(3 + (hvd.rank() == 0)))
    inner = torch.optim.SGD([parameter], lr=0.1)
    optimizer = hvd.DistributedOptimizer(inner, [("odd", parameter)], op=hvd.Adasum)
    parameter.sum().backward()
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched ADASUM tensor shapes"):
        optimizer.step()
    assert torch.equal(parameter.detach(), torch.ones_like(parameter))


def test_a_closure_is_run_by_the_wrapped_optimizer():
    parameter = torch.nn.Parameter(torch.ones(3))
    inner = torch.optim.LBFGS([parameter], lr=0.5)
    optimizer = hvd.DistributedOptimizer(inner, [("weights", parameter)], op=hvd.Adasum)

    def closure():
        optimizer.zero_grad()
        loss = (parameter - hvd.rank()).square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 3.0 * (1 - hvd.rank()) ** 2
    assert torch.equal(hvd.broadcast(parameter.detach(), 0), parameter.detach())
