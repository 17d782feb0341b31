"""Every optimizer of torch: the same parameters on all ranks, equal to those of one big batch."""

import inspect

import pytest
import torch
from training import assert_same_bits_everywhere, batches, flat, loss_of, network

import horovod.torch as hvd

CLASSES = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind)
    and issubclass(kind, torch.optim.Optimizer)
    and kind is not torch.optim.Optimizer
)
SPARSE = {"SparseAdam"}
MATRICES = {"Muon"}
# Muon orthogonalizes in bfloat16.
TOLERANCE = {"Muon": 1e-2}
OPTIONS = {"LBFGS": {"lr": 0.5, "max_iter": 6}}
# From one batch to another, what LBFGS knows about the curvature may send it anywhere.
STEPS = {"LBFGS": 1}


class Words(torch.nn.Module):
    """Looks up numbers computed from the batch; its gradients are sparse."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(10, 2, sparse=True)

    def forward(self, batch):
        return self.table((batch[:, 0].abs() * 5).long().clamp(max=9))


def model_for(name):
    model = network() if name not in SPARSE else Words()
    # In single precision a rounding error can flip the sign of a gradient, and some optimizers use
    # only the sign.
    return model.double()


def optimizer_for(name, model):
    parameters = [each for each in model.parameters() if name not in MATRICES or each.dim() == 2]
    return getattr(torch.optim, name)(parameters, **OPTIONS.get(name, {"lr": 0.01}))


def step(optimizer, model, batch):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        return loss

    if isinstance(optimizer, torch.optim.LBFGS):
        return optimizer.step(closure)
    closure()
    return optimizer.step()


def test_long_standing_optimizers_of_torch_are_found():
    assert {"SGD", "Adam", "AdamW", "LBFGS", "SparseAdam", "Rprop"} <= set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_steps_are_those_of_one_rank_on_the_whole_batch(name):
    model, alone = model_for(name), model_for(name)
    optimizer = hvd.DistributedOptimizer(optimizer_for(name, model), model.named_parameters())
    plain = optimizer_for(name, alone)
    assert isinstance(optimizer, getattr(torch.optim, name))
    before = flat(model).clone()
    for whole, own in batches(STEPS.get(name, 5)):
        step(optimizer, model, own.double())
        step(plain, alone, whole.double())
    assert_same_bits_everywhere(model)
    tolerance = TOLERANCE.get(name, 1e-7)
    assert torch.allclose(flat(model), flat(alone), rtol=tolerance, atol=tolerance)
    assert not torch.equal(flat(model), before)


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "LBFGS"])
def test_the_state_of_the_root_can_be_broadcast(name):
    model = model_for(name)
    optimizer = hvd.DistributedOptimizer(optimizer_for(name, model), model.named_parameters())
    if hvd.rank() == 0:
        # Only the root has a history, as if it alone had read a checkpoint.
        other = model_for(name)
        trained = optimizer_for(name, other)
        for _, own in batches(2):
            step(trained, other, own.double())
        model.load_state_dict(other.state_dict())
        optimizer.load_state_dict(trained.state_dict())
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    for _, own in batches(2):
        step(optimizer, model, own.double())
    assert_same_bits_everywhere(model)
