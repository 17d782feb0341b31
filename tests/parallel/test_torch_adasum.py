"""Adasum between ranks: values, groups, gradients, and the optimizer that combines weights."""

import pytest
import torch

import horovod.torch as hvd


def pair(a, b):
    """What two tensors become, by definition."""
    dot, left, right = (a * b).sum(), (a * a).sum(), (b * b).sum()
    factors = [1 - dot / (2 * square) if square else 1.0 for square in (left, right)]
    return factors[0] * a + factors[1] * b


def tree(tensors):
    """What the tensors of all ranks become: first those above a power of two are folded in."""
    level = [tensor.to(torch.float64) for tensor in tensors]
    half = 1 << (len(level).bit_length() - 1)
    surplus = len(level) - half
    folded = [pair(level[place], level[place + half]) for place in range(surplus)]
    level = folded + level[surplus:half]
    while len(level) > 1:
        level = [pair(a, b) for a, b in zip(level[::2], level[1::2])]
    return level[0]


def everyones(shape, seed=0, dtype=torch.float32):
    return [
        torch.randn(shape, generator=torch.Generator().manual_seed(100 * seed + rank)).to(dtype)
        for rank in range(hvd.size())
    ]


def mine(tensors):
    return tensors[hvd.rank()].clone()


TOLERANCES = {
    torch.float16: 1e-2,
    torch.bfloat16: 6e-2,
    torch.float32: 1e-5,
    torch.float64: 1e-12,
}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (17,), (3, 5), (0,), (100_003,)], ids=str)
def test_adasum_is_what_its_definition_says(dtype, shape):
    tensors = everyones(shape, dtype=dtype)
    tensor = mine(tensors)
    combined = hvd.allreduce(tensor, op=hvd.Adasum)
    tolerance = TOLERANCES[dtype]
    expected = tree(tensors)
    assert combined.dtype == dtype
    assert torch.allclose(combined.to(torch.float64), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(tensor, tensors[hvd.rank()])
    assert hvd.allreduce_(tensor, op=hvd.Adasum) is tensor
    assert torch.equal(tensor, combined)
    assert torch.equal(hvd.broadcast(combined, 0), combined)


def test_right_angles_add_and_equals_average():
    unit = torch.zeros(hvd.size())
    unit[hvd.rank()] = 3.0
    assert torch.equal(hvd.allreduce(unit, op=hvd.Adasum), torch.full((hvd.size(),), 3.0))
    same = torch.tensor([1.5, -2.0, 0.25])
    assert torch.equal(hvd.allreduce(same, op=hvd.Adasum), same)


def test_tensors_that_travel_together_are_combined_one_by_one():
    lengths = [3, 4000, 1, 70_000]
    all_tensors = [everyones((length,), seed) for seed, length in enumerate(lengths)]
    expected = [tree(tensors) for tensors in all_tensors]
    grouped = hvd.grouped_allreduce([mine(each) for each in all_tensors], op=hvd.Adasum)
    handles = [
        hvd.allreduce_async(mine(each), name=f"fused.{index}", op=hvd.Adasum)
        for index, each in enumerate(all_tensors)
    ]
    single = [hvd.synchronize(handle) for handle in handles]
    for together, alone, right in zip(grouped, single, expected):
        assert torch.equal(together, alone)
        assert torch.allclose(alone.to(torch.float64), right, rtol=1e-5, atol=1e-5)


def test_factors_are_applied_once():
    tensors = everyones((50,))
    combined = hvd.allreduce(
        mine(tensors), op=hvd.Adasum, prescale_factor=2.0, postscale_factor=0.25
    )
    assert torch.allclose(combined.to(torch.float64), tree(tensors) / 2, rtol=1e-5, atol=1e-6)


def test_gradients_are_combined_too():
    tensor = torch.zeros(4, requires_grad=True)
    weights = everyones((4,))
    (hvd.allreduce(tensor, op=hvd.Adasum) * mine(weights)).sum().backward()
    assert torch.allclose(tensor.grad.to(torch.float64), tree(weights), rtol=1e-5, atol=1e-6)


def test_what_adasum_cannot_do_is_refused():
    with pytest.raises(ValueError, match="floating-point tensors only"):
        hvd.allreduce(torch.ones(3, dtype=torch.int64), op=hvd.Adasum)
    with pytest.raises(ValueError, match="only supports AVERAGE and SUM"):
        hvd.reducescatter(torch.ones(4), op=hvd.Adasum)
    with pytest.raises(ValueError, match="sparse_as_dense=True"):
        hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), "sparse", hvd.Adasum)


def test_ranks_that_want_different_reductions_are_told():
    op = hvd.Adasum if hvd.rank() == 0 else hvd.Sum
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched operations"):
        hvd.allreduce(torch.ones(3), name="different", op=op)


def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
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
    # Every rank plays all ranks: each copy steps by itself, from the common weights.
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
                delta = tree([replica - start for replica in replicas]).to(start.dtype)
                for replica in replicas:
                    replica.copy_(start + delta)
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
