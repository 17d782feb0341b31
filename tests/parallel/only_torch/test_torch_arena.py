"""Gradients that persist from step to step are in memory that all ranks see: only speed changes."""

import copy
import gc
import io
import os

import pytest
import torch
from frameworks.torch import DEVICE

import horovod.torch as hvd
from horovod import _native

# Over sockets there is no such memory, and everything still works.
SHARED = os.environ.get("RONDE_TRANSPORT") != "tcp"
# With sockets, the order of summation depends on which tensors happen to share a bucket.
EXACT = SHARED and "RONDE_SHARED_RANKS" not in os.environ


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 300),
        torch.nn.Tanh(),
        torch.nn.Linear(300, 300),
        torch.nn.Linear(300, 2),
    )


def batches(steps):
    generator = torch.Generator(DEVICE).manual_seed(hvd.rank())
    return [torch.randn(4, 64, generator=generator) for _ in range(steps)]


def distributed(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)


def train(model, optimizer, steps, clear):
    for number, batch in enumerate(batches(steps)):
        clear(number)
        model(batch).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def in_arena(model):
    return [_native.in_arena(parameter.grad.data_ptr()) for parameter in model.parameters()]


def assert_same_bits(one, other):
    if EXACT:
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))
    assert torch.allclose(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"groups": 2}, {"gradient_predivide_factor": 2.0}, {"op": hvd.Sum}]
)
def test_steps_have_the_same_bits_wherever_gradients_are(options):
    reference = network()
    optimizer = distributed(reference, **options)
    expected = train(reference, optimizer, 8, lambda _: optimizer.zero_grad())
    assert not any(in_arena(reference))
    ways = {
        "never": lambda number: False,
        "now and then": lambda number: number % 3 == 0,
        "on some ranks": lambda number: hvd.rank() == 0,
    }
    for way, to_none in ways.items():
        model = network()
        optimizer = distributed(model, **options)

        def clear(number, optimizer=optimizer, to_none=to_none):
            optimizer.zero_grad(set_to_none=to_none(number))

        assert_same_bits(train(model, optimizer, 8, clear), expected)
        if way == "never":
            assert in_arena(model) == [SHARED] * 6


def test_a_referenced_gradient_stays_the_same_tensor():
    model = network()
    optimizer = distributed(model)
    train(model, optimizer, 1, lambda _: None)
    held = [parameter.grad for parameter in model.parameters()]
    watched = model[2].weight.grad.view(-1)
    train(model, optimizer, 3, lambda _: optimizer.zero_grad(set_to_none=False))
    for parameter, grad in zip(model.parameters(), held):
        assert parameter.grad is grad
    # Moving it would break views of its memory.
    assert not _native.in_arena(model[2].weight.grad.data_ptr())
    assert torch.equal(watched, model[2].weight.grad.view(-1))
    assert in_arena(model).count(True) == (5 if SHARED else 0)


def test_gradients_in_the_arena_are_saved_copied_and_converted_like_any_other():
    model = network()
    optimizer = distributed(model)
    train(model, optimizer, 2, lambda _: optimizer.zero_grad(set_to_none=False))
    assert in_arena(model) == [SHARED] * 6
    grad = model[3].bias.grad
    file = io.BytesIO()
    torch.save(grad, file)
    assert len(file.getvalue()) < 10_000
    file.seek(0)
    assert torch.equal(torch.load(file), grad)
    assert torch.equal(copy.deepcopy(grad), grad)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    model.double()
    assert model[3].bias.grad.dtype == torch.float64
    for batch in batches(3):
        optimizer.zero_grad(set_to_none=False)
        model(batch.double()).square().mean().backward()
        optimizer.step()
    mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.equal(hvd.broadcast(mine, 0), mine)


def test_sparse_and_frozen_and_compressed_gradients_stay_where_they_are():
    model = torch.nn.Sequential(torch.nn.Embedding(100, 64, sparse=True), network())
    frozen = model[1][0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), compression=hvd.Compression.bf16
    )
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        model(torch.arange(5) + hvd.rank()).square().mean().backward()
        optimizer.step()
    assert frozen.grad is None and model[0].weight.grad.is_sparse
    mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.equal(hvd.broadcast(mine, 0), mine)


def shared_mappings():
    with open("/proc/self/maps") as maps:
        return sum("ronde-arena" in line for line in maps)


def test_tensors_outlive_the_world_and_then_their_memory_is_freed():
    gc.collect()
    model = network()
    optimizer = distributed(model)
    clear = lambda _: optimizer.zero_grad(set_to_none=False)  # noqa: E731
    train(model, optimizer, 2, clear)
    before = [parameter.grad.clone() for parameter in model.parameters()]
    hvd.barrier()
    hvd.shutdown()
    for parameter, grad in zip(model.parameters(), before):
        assert torch.equal(parameter.grad, grad)
    optimizer.zero_grad(set_to_none=False)
    hvd.init()
    assert shared_mappings() == (2 if SHARED else 0)
    assert not any(in_arena(model))
    train(model, optimizer, 2, clear)
    assert in_arena(model) == [SHARED] * 6
    gc.collect()
    assert shared_mappings() == (1 if SHARED else 0)


def test_a_forked_child_leaves_the_gradients_alone():
    model = network()
    optimizer = distributed(model)
    train(model, optimizer, 2, lambda _: optimizer.zero_grad(set_to_none=False))
    before = [parameter.grad.clone() for parameter in model.parameters()]
    pid = os.fork()
    if pid == 0:
        for parameter in model.parameters():
            parameter.grad = None
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for parameter, grad in zip(model.parameters(), before):
        assert torch.equal(parameter.grad, grad)
