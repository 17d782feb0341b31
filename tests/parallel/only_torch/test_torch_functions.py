"""Broadcasting parameters and optimizer state."""

import pytest
import torch

import horovod.torch as hvd


def same_everywhere(value):
    return all(other == value for other in hvd.allgather_object(value))


def contents(state_dict):
    return {
        key: {name: getattr(v, "tolist", lambda v=v: v)() for name, v in state.items()}
        for key, state in state_dict["state"].items()
    }


def small_model(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 2),
        torch.nn.BatchNorm2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 2),
    )


def train(model, optimizer, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 3, 3, 3)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("form", ["dictionary", "pairs", "tensors"])
def test_parameters_become_those_of_the_root(form):
    for root in range(hvd.size()):
        model = small_model(hvd.rank() + 1)
        with torch.no_grad():
            model(torch.randn(4, 3, 3, 3))
        params = {
            "dictionary": model.state_dict(),
            "pairs": list(model.named_parameters()),
            "tensors": list(model.parameters()),
        }[form]
        hvd.broadcast_parameters(params, root)
        expected = small_model(root + 1)
        for tensor, right in zip(model.parameters(), expected.parameters()):
            assert torch.equal(tensor, right)
        if form == "dictionary":
            statistics = {k: v.tolist() for k, v in model.state_dict().items() if "running" in k}
            assert same_everywhere(statistics)


def test_parameters_in_another_memory_format_keep_it():
    model = small_model(hvd.rank()).to(memory_format=torch.channels_last)
    hvd.broadcast_parameters(model.state_dict(), 0)
    weight = model[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(weight, small_model(0)[0].weight)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True),
        lambda p, lr: torch.optim.SGD(p, lr=lr),
        lambda p, lr: torch.optim.Adam(p, lr=lr, amsgrad=True),
        lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0.5),
        lambda p, lr: torch.optim.RMSprop(p, lr=lr, centered=True),
    ],
    ids=["momentum", "sgd", "adam", "adamw", "rmsprop"],
)
def test_optimizer_state_becomes_that_of_the_root(make, wrapped):
    model = small_model(hvd.rank())
    optimizer = make(model.parameters(), 0.1 * (hvd.rank() + 1))
    group = optimizer.param_groups[0]
    if hvd.rank() == 0:
        train(model, optimizer)
    parameters = [parameter.detach().clone() for parameter in model.parameters()]
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert same_everywhere(contents(optimizer.state_dict()))
    assert optimizer.param_groups[0] is group
    assert group["lr"] == 0.1
    assert type(group["lr"]) is float
    for parameter, before in zip(model.parameters(), parameters):
        assert torch.equal(parameter, before)
    hvd.broadcast_parameters(model.state_dict(), 0)
    if wrapped:
        train(model, optimizer)
        assert same_everywhere([parameter.tolist() for parameter in model.parameters()])


def test_fresh_optimizers_exchange_their_options_only():
    model = small_model(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (hvd.rank() + 1))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    hvd.broadcast_optimizer_state(optimizer, 1)
    assert optimizer.param_groups[0]["lr"] == 0.2
    for parameter, old in zip(model.parameters(), before):
        assert torch.equal(parameter, old)


def test_missing_gradients_of_a_fresh_optimizer_become_zeros():
    model = torch.nn.ModuleDict(
        {"words": torch.nn.Embedding(4, 2, sparse=True), "rest": torch.nn.Linear(2, 1)}
    )
    model["rest"].bias.requires_grad = False
    model["rest"].weight.grad = torch.ones(1, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hvd.broadcast_optimizer_state(optimizer, 0, model)
    words, rest = model["words"].weight.grad, model["rest"]
    assert words.is_sparse and words.to_dense().tolist() == [[0.0, 0.0]] * 4
    # A frozen parameter needs no gradient, and an existing gradient is kept.
    assert rest.bias.grad is None and rest.weight.grad.tolist() == [[1.0, 1.0]]
    plain = torch.nn.Linear(2, 1)
    hvd.broadcast_optimizer_state(hvd.DistributedOptimizer(torch.optim.Adam(plain.parameters())), 0)
    assert all(not parameter.grad.any() for parameter in plain.parameters())
