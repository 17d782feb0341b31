"""Training as in real programs: mixed precision, checkpointing, compiled models, copies, states."""

import contextlib
import copy
import io
import pickle
import sys
import warnings

import pytest
import torch
from frameworks.torch import DEVICE
from torch.utils.checkpoint import checkpoint
from training import (
    assert_continued_alike,
    assert_same_bits_everywhere,
    batches,
    flat,
    loss_of,
    network,
    train,
)

import horovod.torch as hvd

GRAD_SCALER = getattr(torch.amp, "GradScaler", None)
needs_scaler = pytest.mark.skipif(GRAD_SCALER is None, reason="this torch scales only on GPUs")


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, **options)


def distributed(model, inner=None, **options):
    return hvd.DistributedOptimizer(inner or sgd(model), model.named_parameters(), **options)


def assert_close_to_alone(model, steps, **options):
    alone = network()
    train(alone, sgd(alone), steps, whole=True)
    options = options or {"rtol": 1e-4, "atol": 1e-6}
    assert torch.allclose(flat(model), flat(alone), **options)


@contextlib.contextmanager
def no_warning_about_the_order():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*skip_synchronize.*")
        yield


@needs_scaler
@pytest.mark.parametrize("inner", ["plain", "fused"])
@pytest.mark.parametrize("groups", [0, 2])
def test_a_scaler_steps_with_reduced_gradients(inner, groups):
    model = network()
    try:
        wrapped = sgd(model, fused=inner == "fused")
    except (RuntimeError, TypeError):
        pytest.skip("this torch has no fused optimizer on CPUs")
    optimizer = distributed(model, wrapped, groups=groups)
    scaler = GRAD_SCALER(DEVICE, init_scale=1024.0)
    for _, own in batches(10):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, own)).backward()
        with no_warning_about_the_order():
            scaler.step(optimizer)
        scaler.update()
    assert_same_bits_everywhere(model)
    assert_close_to_alone(model, 10)


@needs_scaler
def test_a_scaler_accepts_gradients_that_the_user_has_reduced_and_clipped():
    model, alone = network(), network()
    optimizer, plain = distributed(model), sgd(alone)
    scaler = GRAD_SCALER(DEVICE, init_scale=1024.0)
    for whole, own in batches(10):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, own)).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize(), no_warning_about_the_order():
            scaler.step(optimizer)
        scaler.update()

        plain.zero_grad()
        loss_of(alone, whole).backward()
        expected = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
        plain.step()
        assert torch.allclose(norm, expected, rtol=1e-3)
    assert_same_bits_everywhere(model)
    assert torch.allclose(flat(model), flat(alone), rtol=1e-4, atol=1e-6)


@needs_scaler
def test_infinities_on_one_rank_make_all_ranks_skip_the_step():
    model = network()
    optimizer = distributed(model)
    scaler = GRAD_SCALER(DEVICE, init_scale=1024.0)
    for turn, (_, own) in enumerate(batches(4)):
        optimizer.zero_grad()
        before = flat(model).clone()
        overflows = turn == 1
        # After a skipped step, a rank without gradients still takes part.
        if turn != 2 or hvd.rank() != 0:
            loss = loss_of(model, own)
            broken = overflows and hvd.rank() == 1
            scaler.scale(loss * float("inf") if broken else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(flat(model), before) == overflows
        assert scaler.get_scale() == (1024.0 if turn < 1 else 512.0)
    assert_same_bits_everywhere(model)


def test_autocast_to_bfloat16_keeps_ranks_equal():
    model = network()
    optimizer = distributed(model)
    losses = []
    for whole, own in batches(30):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            output = model(own)
        assert output.dtype == torch.bfloat16
        (output.float() - own[:, :2].sin()).square().mean().backward()
        optimizer.step()
        losses.append(loss_of(model, whole).item())
    assert_same_bits_everywhere(model)
    assert losses[-1] < losses[0] / 2
    assert_close_to_alone(model, 30, rtol=0.1, atol=0.02)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_may_be_removed_or_zeroed(set_to_none):
    model = network()
    optimizer = distributed(model)
    for _, own in batches(5):
        optimizer.zero_grad(set_to_none=set_to_none)
        assert all((p.grad is None) or (p.grad == 0).all() for p in model.parameters())
        loss_of(model, own).backward()
        optimizer.step()
    assert_same_bits_everywhere(model)
    assert_close_to_alone(model, 5)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activations_may_be_computed_again(reentrant):
    model = network()
    optimizer = distributed(model)
    for _, own in batches(5):
        optimizer.zero_grad()
        hidden = checkpoint(model[:2], own.requires_grad_(), use_reentrant=reentrant)
        output = checkpoint(model[2:], hidden, use_reentrant=reentrant)
        (output - own.detach()[:, :2].sin()).square().mean().backward()
        optimizer.step()
    assert_same_bits_everywhere(model)
    assert_close_to_alone(model, 5)


@pytest.mark.skipif(sys.version_info >= (3, 15), reason="torch.compile may not support this Python")
def test_a_model_may_be_compiled():
    model = network()
    # Captured and differentiated ahead of time as usual, but not compiled to machine code.
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = distributed(model)
    for _, own in batches(5):
        optimizer.zero_grad()
        loss_of(compiled, own).backward()
        optimizer.step()
    assert_same_bits_everywhere(model)
    assert_close_to_alone(model, 5)


@pytest.mark.skipif(sys.version_info >= (3, 15), reason="torch.compile may not support this Python")
def test_a_compiled_function_may_reduce_and_inspect_the_op():
    def reduced(tensor, op):
        scaled = tensor * 2 if op == hvd.Average else tensor + op
        return hvd.allreduce(scaled, name="compiled", op=op)

    compiled = torch.compile(reduced, backend="aot_eager")
    for op in (hvd.Average, hvd.Sum, hvd.Max, 1):
        assert compiled(torch.ones(2), op).equal(reduced(torch.ones(2), op))


def test_a_parameter_that_no_rank_uses_gets_zeros():
    model = network()
    idle = torch.nn.Parameter(torch.ones(3))
    model.register_parameter("idle", idle)
    optimizer = distributed(model)
    train(model, optimizer, 3)
    assert idle.grad.eq(0).all()
    assert idle.eq(1).all()
    assert_same_bits_everywhere(model)


def test_loading_an_earlier_state_repeats_the_same_steps():
    model = network()
    optimizer = distributed(model)
    train(model, optimizer, 3)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 3)
    expected = flat(model).clone()
    # A backward pass has started reductions before the state is loaded, as when a step is
    # abandoned.
    loss_of(model, next(batches(1))[1]).backward()
    optimizer.synchronize()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert not torch.equal(flat(model), expected)
    train(model, optimizer, 3)
    assert_continued_alike(flat(model), expected)
    assert_same_bits_everywhere(model)


def saved_and_read(pair):
    stream = io.BytesIO()
    torch.save(pair, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda pair: pickle.loads(pickle.dumps(pair)),
    "torch.save": saved_and_read,
}
WAYS = {
    "plain": {},
    "groups": {"groups": 2},
    "passes": {"backward_passes_per_step": 2, "compression": hvd.Compression.fp16},
    "adasum": {"op": hvd.Adasum},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_of_model_and_optimizer_continues_like_the_original(kind, way):
    def steps(model, optimizer):
        for _, own in batches(3):
            optimizer.zero_grad()
            for _ in range(optimizer.backward_passes_per_step):
                loss_of(model, own).backward()
            optimizer.step()

    model = network()
    optimizer = distributed(model, **WAYS[way])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    steps(model, optimizer)
    scheduler.step()
    other_model, other = COPIES[kind]((model, optimizer))
    assert type(other).__name__ == "SGD" and isinstance(other, torch.optim.SGD)
    assert other.param_groups[0]["params"][0] is next(other_model.parameters())
    steps(model, optimizer)
    assert not torch.equal(flat(model), flat(other_model))
    steps(other_model, other)
    assert_continued_alike(flat(model), flat(other_model))
    assert_same_bits_everywhere(other_model)


def test_a_shallow_copy_steps_the_same_parameters():
    model = network()
    optimizer = distributed(model)
    twin = copy.copy(optimizer)
    assert type(twin) is type(optimizer)
    for turn, (_, own) in enumerate(batches(4)):
        stepping = (optimizer, twin)[turn % 2]
        stepping.zero_grad()
        loss_of(model, own).backward()
        stepping.step()
    assert_same_bits_everywhere(model)
    assert_close_to_alone(model, 4)


@pytest.mark.parametrize("groups", [None, 1, "lists"])
def test_two_optimizers_may_be_given_the_names_of_the_whole_model(groups):
    model = network()
    halves = [list(model[:2].parameters()), list(model[2:].parameters())]
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD(half, lr=0.05, momentum=0.9),
            model.named_parameters(),
            groups=halves if groups == "lists" else groups,
        )
        for half in halves
    ]
    for _, own in batches(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model, own).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert_same_bits_everywhere(model)
    assert_close_to_alone(model, 5)
