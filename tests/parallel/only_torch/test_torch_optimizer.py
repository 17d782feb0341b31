"""The distributed optimizer: the same steps on all ranks, equal to those on one big batch."""

import gc
import warnings
import weakref

import pytest
import torch
from frameworks.torch import DEVICE
from training import assert_same_bits_everywhere, batches, flat, loss_of, network, train

import horovod.torch as hvd


def sgd(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}
WAYS = {
    "plain": {},
    "predivide": {"gradient_predivide_factor": 4.0},
    "groups": {"groups": 2},
    "groups and predivide": {"groups": 3, "gradient_predivide_factor": 4.0},
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("way", WAYS)
def test_a_hundred_steps_equal_those_of_one_rank_on_the_whole_batch(kind, way):
    model = network(seed=hvd.rank())
    hvd.broadcast_parameters(model.state_dict(), 0)
    inner = OPTIMIZERS[kind](model.parameters())
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), **WAYS[way])
    hvd.broadcast_optimizer_state(optimizer, 0)
    losses = train(model, optimizer, 100)
    assert_same_bits_everywhere(model)

    alone = network()
    expected = train(alone, OPTIMIZERS[kind](alone.parameters()), 100, whole=True)
    assert torch.allclose(torch.tensor(losses), torch.tensor(expected), rtol=1e-4, atol=1e-6)
    assert torch.allclose(flat(model), flat(alone), rtol=1e-3, atol=1e-5)
    assert losses[-1] < losses[0] / 2


def test_groups_chosen_by_the_user():
    model = network()
    optimizer = sgd(model, groups=[[model[0].weight, model[3].bias], [model[2].weight]])
    train(model, optimizer, 10)
    assert_same_bits_everywhere(model)
    alone = network()
    train(alone, OPTIMIZERS["sgd"](alone.parameters()), 10, whole=True)
    assert torch.allclose(flat(model), flat(alone), rtol=1e-4, atol=1e-6)


def test_a_model_is_freed_with_its_optimizer():
    model = network()
    optimizer = sgd(model)
    train(model, optimizer, 2)
    parts = [weakref.ref(part) for part in (model, model[0].weight, model[0].weight.grad)]
    del model, optimizer
    gc.collect()
    assert [part() for part in parts] == [None] * 3


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_compressed_gradients_keep_ranks_equal(name):
    model = network()
    losses = train(model, sgd(model, compression=getattr(hvd.Compression, name)), 50)
    assert_same_bits_everywhere(model)
    assert losses[-1] < losses[0]


def test_op_sum_adds_the_gradients():
    model = network()
    optimizer = sgd(model, op=hvd.Sum)
    for parameter in model.parameters():
        parameter.grad = None
    loss_of(model, next(batches(1))[1]).backward()
    optimizer.synchronize()
    alone = network()
    (loss_of(alone, next(batches(1))[0]) * hvd.size()).backward()
    assert torch.allclose(model[0].weight.grad, alone[0].weight.grad, rtol=1e-4, atol=1e-6)


class Probe(torch.autograd.Function):
    """Calls a function when the backward pass reaches it."""

    @staticmethod
    def forward(ctx, tensor, call):
        ctx.call = call
        return tensor.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.call()
        return grad, None


@pytest.mark.parametrize("way", ["plain", "groups"])
def test_gradients_are_reduced_while_the_backward_pass_runs(way):
    model = network()
    optimizer = sgd(model, **WAYS[way])
    seen = []
    own = next(batches(1))[1].requires_grad_()
    hidden = Probe.apply(model[0](own), lambda: seen.append(optimizer._reducer.in_flight))
    model[3](model[2](model[1](hidden))).sum().backward()
    assert seen == [True]
    optimizer.step()
    assert_same_bits_everywhere(model)


def test_reductions_in_flight_can_be_inspected_and_started_by_hand():
    model = network()
    optimizer = sgd(model)
    parameters = set(model.parameters())
    assert optimizer._requires_update == parameters and optimizer._handles == {}
    _, own = next(batches(1))
    loss_of(model, own).backward()
    assert set(optimizer._handles) == parameters
    optimizer.step()
    assert optimizer._handles == {}
    optimizer.zero_grad()
    # A library may reduce a gradient that it has computed itself.
    first = next(model.parameters())
    first.grad = torch.full_like(first, float(hvd.rank()))
    handle, _ = optimizer._allreduce_grad_async(first)
    assert list(optimizer._handles) == [first]
    assert optimizer._allreduce_grad_async(first)[0] == handle
    optimizer.synchronize()
    assert first.grad.eq((hvd.size() - 1) / 2).all()
    with optimizer.skip_synchronize():
        optimizer.step()
    assert_same_bits_everywhere(model)


def test_several_backward_passes_are_summed_before_a_step():
    model = network()
    optimizer = sgd(model, backward_passes_per_step=2)
    for _ in range(3):
        optimizer.zero_grad()
        for _, own in batches(2):
            assert not optimizer._reducer.in_flight
            loss_of(model, own).backward()
        optimizer.step()
    assert_same_bits_everywhere(model)

    alone = network()
    plain = OPTIMIZERS["sgd"](alone.parameters())
    for _ in range(3):
        plain.zero_grad()
        for whole, _ in batches(2):
            loss_of(alone, whole).backward()
        plain.step()
    assert torch.allclose(flat(model), flat(alone), rtol=1e-4, atol=1e-6)


def test_one_backward_pass_too_many_is_an_assertion_error():
    model = network()
    optimizer = sgd(model)
    own = next(batches(1))[1]
    loss_of(model, own).backward()
    with pytest.raises(AssertionError) as error:
        loss_of(model, own).backward()
    assert str(error.value).startswith(
        "Gradients were computed more than backward_passes_per_step times before call to step()."
    )
    optimizer.synchronize()
    optimizer.set_backward_passes_per_step(2)
    loss_of(model, own).backward()
    loss_of(model, own).backward()
    with optimizer.skip_synchronize():
        optimizer.synchronize()
        optimizer.step()


def test_zero_grad_between_backward_and_step_is_an_assertion_error():
    model = network()
    optimizer = sgd(model)
    optimizer.zero_grad(set_to_none=False)
    loss_of(model, next(batches(1))[1]).backward()
    with pytest.raises(AssertionError) as error:
        optimizer.zero_grad()
    assert str(error.value).startswith(
        "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
        "optimizer.synchronize()."
    )
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    assert model[0].weight.grad is None


def test_gradients_can_be_clipped_between_synchronize_and_step():
    model = network()
    optimizer = sgd(model)
    for _, own in batches(5):
        optimizer.zero_grad()
        loss_of(model, own).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        with optimizer.skip_synchronize(), warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer.step()
    assert_same_bits_everywhere(model)


def test_step_after_synchronize_warns_and_does_not_sum_twice():
    model = network()
    optimizer = sgd(model, op=hvd.Sum)
    loss_of(model, next(batches(1))[1]).backward()
    optimizer.synchronize()
    gradient = model[0].weight.grad.clone()
    with pytest.warns(UserWarning, match=r"called without optimizer\.skip_synchronize\(\)"):
        optimizer.step()
    assert torch.equal(model[0].weight.grad, gradient)


def test_a_closure_steps_with_reduced_gradients():
    model = network()
    optimizer = sgd(model)
    for _, own in batches(5):

        def closure(own=own):
            optimizer.zero_grad()
            loss = loss_of(model, own)
            loss.backward()
            return loss

        assert optimizer.step(closure) > 0
    assert_same_bits_everywhere(model)
    alone = network()
    train(alone, OPTIMIZERS["sgd"](alone.parameters()), 5, whole=True)
    assert torch.allclose(flat(model), flat(alone), rtol=1e-4, atol=1e-6)


def test_a_parameter_that_only_some_ranks_use_counts_as_zero_elsewhere():
    model = network()
    optimizer = sgd(model)
    for _, own in batches(3):
        optimizer.zero_grad()
        layers = model[:3] if hvd.rank() == 0 else model
        layers(own).sum().backward()
        optimizer.step()
    assert_same_bits_everywhere(model)
    assert model[3].weight.grad is not None


def test_parameters_may_be_frozen_unfrozen_and_added():
    model = network()
    model[0].requires_grad_(False)
    extra = torch.nn.Linear(2, 1)
    hvd.broadcast_parameters(extra.state_dict(), 0)
    optimizer = sgd(model)
    first = model[0].weight.detach().clone()
    train(model, optimizer, 2)
    assert model[0].weight.grad is None
    assert torch.equal(model[0].weight, first)
    model[0].requires_grad_(True)
    model[3].requires_grad_(False)
    optimizer.add_param_group({"params": list(extra.parameters())})
    last = model[3].weight.detach().clone()
    for _, own in batches(3):
        optimizer.zero_grad()
        extra(model(own)).square().mean().backward()
        optimizer.step()
    assert_same_bits_everywhere(model)
    assert_same_bits_everywhere(extra)
    assert not torch.equal(model[0].weight, first)
    assert torch.equal(model[3].weight, last)


def test_gradients_in_another_memory_format():
    torch.manual_seed(0)
    model = torch.nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    optimizer = sgd(model)
    generator = torch.Generator(DEVICE).manual_seed(hvd.rank())
    images = torch.randn(2, 3, 5, 5, generator=generator)
    for _ in range(3):
        optimizer.zero_grad()
        model(images.to(memory_format=torch.channels_last)).square().mean().backward()
        optimizer.step()
    assert_same_bits_everywhere(model)


def test_parameters_of_several_element_types_in_one_group():
    torch.manual_seed(0)
    model = torch.nn.ParameterList(
        [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3, dtype=torch.float64))]
    )
    optimizer = sgd(model, groups=1)
    (model[0].sum() * (hvd.rank() + 1) + model[1].sum() * hvd.rank()).backward()
    optimizer.step()
    mean = sum(range(hvd.size())) / hvd.size()
    assert torch.allclose(model[0], torch.full((3,), 1 - 0.05 * (mean + 1)))
    assert torch.allclose(model[1], torch.full((3,), 1 - 0.05 * mean, dtype=torch.float64))


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_sparse_gradients(sparse_as_dense, op):
    def embedding(sparse):
        torch.manual_seed(0)
        return torch.nn.Embedding(10, 3, sparse=sparse)

    def look_up(model, rank):
        words = torch.tensor([rank, 3, 3, 9 - rank])
        return (model(words) * (rank + 1)).sum()

    model = embedding(sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), op=op, sparse_as_dense=sparse_as_dense
    )
    alone = embedding(sparse=False)
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    divisor = hvd.size() if op == hvd.Average else 1
    for _ in range(3):
        optimizer.zero_grad()
        look_up(model, hvd.rank()).backward()
        optimizer.step()
        assert model.weight.grad.is_sparse
        plain.zero_grad()
        (sum(look_up(alone, rank) for rank in range(hvd.size())) / divisor).backward()
        plain.step()
    assert_same_bits_everywhere(model)
    assert torch.allclose(model.weight, alone.weight, rtol=1e-5, atol=1e-6)


def test_a_sparse_gradient_may_be_missing_on_some_ranks_later_on():
    torch.manual_seed(0)
    model = torch.nn.ModuleList([torch.nn.Embedding(5, 2, sparse=True), torch.nn.Linear(2, 1)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    words = torch.tensor([1, hvd.rank()])
    for step in range(3):
        optimizer.zero_grad()
        used = model[0](words) if step == 0 or hvd.rank() == 0 else torch.ones(2, 2)
        model[1](used).sum().backward()
        optimizer.step()
    assert_same_bits_everywhere(model)


def test_loading_a_state_resets_the_optimizer():
    model = network()
    optimizer = sgd(model)
    own = next(batches(1))[1]
    loss_of(model, own).backward()
    optimizer.synchronize()
    optimizer.load_state_dict(optimizer.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.zero_grad()
        loss_of(model, own).backward()
        optimizer.step()
    assert_same_bits_everywhere(model)


def test_an_optimizer_that_is_gone_leaves_the_parameters_alone():
    model = network()
    optimizer = sgd(model)
    train(model, optimizer, 1)
    del optimizer
    gc.collect()
    train(model, sgd(model), 2)
    assert_same_bits_everywhere(model)


def test_two_optimizers_share_a_backward_pass():
    first, second = network(1), network(2)
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(prefix)
        )
        for prefix, model in (("first", first), ("second", second))
    ]
    for _, own in batches(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        (first(own) * second(own)).sum().backward()
        for optimizer in reversed(optimizers):
            optimizer.step()
    assert_same_bits_everywhere(first)
    assert_same_bits_everywhere(second)


def test_a_failed_reduction_leaves_the_optimizer_usable():
    model = network()
    optimizer = sgd(model)
    own = next(batches(1))[1]
    loss_of(model, own).backward()
    optimizer.step()
    shape = 3 + (hvd.rank() == 0)
    odd = torch.nn.Parameter(torch.ones(shape))
    optimizer.add_param_group({"params": [odd]})
    optimizer.zero_grad()
    (loss_of(model, own) + odd.sum()).backward()
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched ALLREDUCE tensor shapes"):
        optimizer.step()
    odd.requires_grad_(False)
    optimizer.zero_grad()
    loss_of(model, own).backward()
    optimizer.step()
    assert_same_bits_everywhere(model)


def test_parameters_of_a_group_may_be_frozen_and_unfrozen():
    model = network()
    optimizer = sgd(model, groups=1)
    for frozen in (model[0], None, model[3], None):
        model.requires_grad_(True)
        if frozen is not None:
            frozen.requires_grad_(False)
        before = flat(model).clone()
        train(model, optimizer, 2)
        assert_same_bits_everywhere(model)
        assert not torch.equal(flat(model), before)


def test_hooks_work_without_the_newer_api_of_torch(monkeypatch):
    monkeypatch.delattr(torch.Tensor, "register_post_accumulate_grad_hook", raising=False)
    model = network()
    train(model, sgd(model), 10)
    assert_same_bits_everywhere(model)
    alone = network()
    train(alone, OPTIMIZERS["sgd"](alone.parameters()), 10, whole=True)
    assert torch.allclose(flat(model), flat(alone), rtol=1e-4, atol=1e-6)
