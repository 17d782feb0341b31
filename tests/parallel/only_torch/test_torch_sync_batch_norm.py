"""Batch normalization over all ranks, compared with one rank on all batches together."""

import warnings

import pytest
import torch
from frameworks.torch import DEVICE

import horovod.torch as hvd

CHANNELS = 6
PLAIN = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}
SHAPES = [(), (5,), (3, 4), (2, 3, 2)]


def rows(uneven):
    """How many rows each rank has."""
    return [2 + 3 * rank if uneven else 4 for rank in range(hvd.size())]


def batches(shape, dtype=torch.float32, uneven=False):
    """The whole batch and the gradient of its output, and this rank's part of both."""
    counts = rows(uneven)
    generator = torch.Generator(DEVICE).manual_seed(3)
    whole = torch.randn(2, sum(counts), CHANNELS, *shape, generator=generator)
    inputs, grads = (whole[0] * 2 + 3).to(dtype), whole[1].to(dtype)
    own = [each.split(counts)[hvd.rank()].clone() for each in (inputs, grads)]
    return inputs, grads, *own


def layers(dims, **options):
    plain = PLAIN.get(dims, torch.nn.BatchNorm3d)(CHANNELS, **options)
    synced = hvd.SyncBatchNorm(CHANNELS, **options)
    if plain.affine:
        with torch.no_grad():
            plain.weight.uniform_(0.5, 2.0)
            plain.bias.uniform_(-1.0, 1.0)
    synced.load_state_dict(plain.state_dict())
    return plain, synced


def run(layer, inputs, grads, turns=2):
    inputs = inputs.clone().requires_grad_()
    for _ in range(turns):
        outputs = layer(inputs)
    outputs.backward(grads)
    return outputs.detach(), inputs.grad


def part(tensor, uneven):
    return tensor.split(rows(uneven))[hvd.rank()]


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=len)
@pytest.mark.parametrize(
    "options", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}], ids=str
)
def test_it_equals_plain_batch_norm_of_all_batches_together(shape, options, uneven):
    plain, synced = layers(len(shape) + 2, **options)
    inputs, grads, own_inputs, own_grads = batches(shape, uneven=uneven)
    outputs, input_grads = run(plain, inputs, grads)
    own_outputs, own_input_grads = run(synced, own_inputs, own_grads)
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(own_outputs, part(outputs, uneven), **close)
    torch.testing.assert_close(own_input_grads, part(input_grads, uneven), **close)
    for mine, theirs in zip(synced.parameters(), plain.parameters()):
        total = hvd.allreduce(mine.grad, op=hvd.Sum)
        torch.testing.assert_close(total, theirs.grad, rtol=1e-4, atol=1e-4)
    assert synced.state_dict().keys() == plain.state_dict().keys()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(synced.state_dict()[name], value, **close)

    synced.eval()
    plain.eval()
    if plain.track_running_stats:
        torch.testing.assert_close(synced(own_inputs), plain(own_inputs), **close)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_element_types(dtype):
    plain, synced = layers(4)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    plain.to(wide)
    if dtype == torch.float64:
        synced.double()
    inputs, grads, own_inputs, own_grads = batches((3, 3), dtype)
    outputs, input_grads = run(plain, inputs.to(wide), grads.to(wide))
    own_outputs, own_input_grads = run(synced, own_inputs, own_grads)
    assert own_outputs.dtype == own_input_grads.dtype == dtype
    tolerance = 1e-6 if dtype == torch.float64 else 2e-2
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(own_outputs.to(wide), part(outputs, False), **close)
    torch.testing.assert_close(own_input_grads.to(wide), part(input_grads, False), **close)
    assert synced.weight.grad.dtype == synced.weight.dtype


def test_a_model_in_bfloat16_keeps_its_types():
    synced = hvd.SyncBatchNorm(CHANNELS).bfloat16()
    outputs, input_grads = run(synced, *batches((3,), torch.bfloat16)[2:])
    kept = (outputs, input_grads, synced.weight.grad, synced.bias.grad, synced.running_mean)
    assert {each.dtype for each in kept} == {torch.bfloat16}


def test_a_large_mean_does_not_cancel_the_variance():
    _, synced = layers(2, affine=False)
    generator = torch.Generator(DEVICE).manual_seed(hvd.rank())
    outputs = synced(torch.randn(1000, CHANNELS, generator=generator) + 3000.0)
    variance = hvd.allreduce(outputs.double().square().mean(0))
    assert torch.allclose(variance, torch.ones(CHANNELS, dtype=torch.float64), rtol=1e-3)


def test_a_rank_may_have_an_empty_batch():
    plain, synced = layers(3)
    generator = torch.Generator(DEVICE).manual_seed(3)
    inputs, grads = torch.randn(2, 8, CHANNELS, 5, generator=generator)
    outputs, input_grads = run(plain, inputs, grads)
    mine = slice(0, 8) if hvd.rank() == 1 else slice(0, 0)
    own_outputs, own_input_grads = run(synced, inputs[mine], grads[mine])
    torch.testing.assert_close(own_outputs, outputs[mine], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(own_input_grads, input_grads[mine], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(synced.running_var, plain.running_var)


def test_a_single_value_is_too_few_only_across_all_ranks():
    synced = hvd.SyncBatchNorm(CHANNELS)
    assert synced(torch.full((1, CHANNELS), float(hvd.rank()))).isfinite().all()
    with pytest.raises(ValueError, match="more than 1 value per channel when training"):
        synced(torch.ones(int(hvd.rank() == 0), CHANNELS))
    hvd.barrier()


def test_evaluation_does_not_wait_for_other_ranks():
    synced = hvd.SyncBatchNorm(CHANNELS).eval()
    if hvd.rank() == 0:
        assert synced(torch.ones(1, CHANNELS)).shape == (1, CHANNELS)
    hvd.barrier()


def test_bad_inputs_are_rejected():
    synced = hvd.SyncBatchNorm(CHANNELS)
    with pytest.raises(ValueError) as error:
        synced(torch.ones(CHANNELS))
    assert str(error.value) == "expected at least 2D input (got 1D input)"
    with pytest.raises(ValueError, match="expected 6 channels in dimension 1"):
        synced(torch.ones(2, CHANNELS + 1))


def test_channels_last_stays_channels_last():
    plain, synced = layers(4)
    inputs, grads, own_inputs, own_grads = batches((4, 4))
    outputs, input_grads = run(plain, inputs, grads)
    own_inputs = own_inputs.to(memory_format=torch.channels_last)
    own_outputs, own_input_grads = run(synced, own_inputs, own_grads)
    assert own_outputs.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(own_outputs, part(outputs, False), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(own_input_grads, part(input_grads, False), rtol=1e-5, atol=1e-5)


def test_training_matches_one_rank_on_the_whole_batch():
    def network(norm):
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Conv2d(2, 4, 3), norm(4), torch.nn.ReLU(), torch.nn.Conv2d(4, 3, 3), norm(3)
        )

    model, alone = network(hvd.SyncBatchNorm), network(torch.nn.BatchNorm2d)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters()
    )
    plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator(DEVICE).manual_seed(7)
    for _ in range(10):
        whole = torch.randn(2 * hvd.size(), 2, 8, 8, generator=generator)
        own = whole[2 * hvd.rank() : 2 * hvd.rank() + 2]
        for net, images, steps in ((model, own, optimizer), (alone, whole, plain)):
            steps.zero_grad()
            (net(images) - images[:, :1, 2:-2, 2:-2]).square().mean().backward()
            steps.step()
    for name, value in alone.state_dict().items():
        mine = model.state_dict()[name]
        torch.testing.assert_close(mine, value, rtol=1e-3, atol=1e-4)
        assert torch.equal(hvd.broadcast(mine, 0), mine)


def test_it_works_in_a_compiled_model():
    model = torch.nn.Sequential(torch.nn.Linear(3, CHANNELS), hvd.SyncBatchNorm(CHANNELS))
    hvd.broadcast_parameters(model.state_dict(), 0)
    own = torch.randn(4, 3, generator=torch.Generator(DEVICE).manual_seed(hvd.rank()))
    model(own).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*horovod.*")
        torch.compile(model, backend="aot_eager")(own).square().sum().backward()
    for parameter, grad in zip(model.parameters(), expected):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-4, atol=1e-4)


def test_a_joined_rank_does_not_count():
    plain, synced = layers(2)
    inputs = batches((), uneven=True)[2]
    if hvd.rank() != 0:
        outputs, input_grads = run(synced, inputs, inputs)
        if hvd.size() == 2:
            expected, expected_grads = run(plain, inputs, inputs)
            torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(input_grads, expected_grads, rtol=1e-4, atol=1e-4)
        assert outputs.isfinite().all()
    hvd.join()
