"""Training with the `ronde` backend: DistributedDataParallel, FSDP2 and DTensor."""

import copy

import pytest
import torch
from frameworks.torch import DEVICE
from groups import prepare_group
from torch.nn.parallel import DistributedDataParallel

import horovod.torch as hvd

pytestmark = pytest.mark.usefixtures("process_group")


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Linear(32, 2)
    ).double()


def batches(steps=4, rows=5):
    """For each step, the rows of all ranks."""
    generator = torch.Generator(DEVICE).manual_seed(7)
    for _ in range(steps):
        inputs = torch.randn(hvd.size() * rows, 6, generator=generator, dtype=torch.float64)
        targets = torch.randn(hvd.size() * rows, 2, generator=generator, dtype=torch.float64)
        yield inputs, targets


def own(tensor):
    return tensor.chunk(hvd.size())[hvd.rank()]


def train(model, take=own, **kwargs):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for inputs, targets in batches(**kwargs):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(take(inputs)), take(targets)).backward()
        optimizer.step()
    return model


def alone():
    """Trains one process on the batches of all ranks."""
    return train(network(), take=lambda tensor: tensor)


def assert_same(model, reference):
    for parameter, expected in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(parameter, expected)


def assert_equal_everywhere(model):
    for parameter in model.parameters():
        first = parameter.detach().clone()
        hvd.broadcast_(first, 0)
        assert torch.equal(first, parameter)


def dtensor():
    module = pytest.importorskip("torch.distributed.tensor")
    if not hasattr(module, "distribute_tensor"):
        pytest.skip("this PyTorch has no public DTensor")
    return module


@pytest.mark.parametrize(
    "options",
    [{}, {"bucket_cap_mb": 0.002}, {"find_unused_parameters": True}, {"static_graph": True}],
    ids=str,
)
def test_ddp_trains_like_one_process(options):
    model = network()
    with torch.no_grad():
        # DDP broadcasts the first rank's parameters.
        for parameter in model.parameters():
            parameter.add_(hvd.rank())
    model = DistributedDataParallel(model, **options)
    train(model)
    assert_same(model.module, alone())
    assert_equal_everywhere(model)


def test_ddp_accumulates_without_synchronizing():
    model = DistributedDataParallel(network())
    reference = network()
    for inputs, targets in batches(steps=1):
        torch.nn.functional.mse_loss(reference(inputs), targets).backward()
        with model.no_sync():
            torch.nn.functional.mse_loss(model(own(inputs)), own(targets)).backward()
        torch.nn.functional.mse_loss(model(own(inputs)), own(targets)).backward()
    for parameter, expected in zip(model.module.parameters(), reference.parameters()):
        torch.testing.assert_close(parameter.grad, 2 * expected.grad)


def test_ddp_with_a_communication_hook():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = DistributedDataParallel(network().float(), bucket_cap_mb=0.002)
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    inputs, targets = next(batches())
    loss = torch.nn.functional.mse_loss(model(own(inputs).float()), own(targets).float())
    loss.backward()
    reference = network()
    torch.nn.functional.mse_loss(reference(inputs), targets).backward()
    for parameter, expected in zip(model.module.parameters(), reference.parameters()):
        torch.testing.assert_close(parameter.grad, expected.grad.float(), rtol=0.05, atol=0.02)


def test_ddp_handles_uneven_inputs_with_join():
    model = DistributedDataParallel(network())
    with model.join():
        for _, (inputs, targets) in zip(range(1 + hvd.rank()), batches()):
            torch.nn.functional.mse_loss(model(own(inputs)), own(targets)).backward()
    assert_equal_everywhere(model)


@pytest.mark.skipif(
    not hasattr(__import__("torch.distributed.fsdp").distributed.fsdp, "fully_shard"),
    reason="this PyTorch has no FSDP2",
)
def test_fsdp2_trains_like_one_process():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(DEVICE, (hvd.size(),))
    model = network()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    shards = sum(parameter.to_local().numel() for parameter in model.parameters())
    assert shards < sum(parameter.numel() for parameter in network().parameters())
    train(model)
    for parameter, expected in zip(model.parameters(), alone().parameters()):
        torch.testing.assert_close(parameter.full_tensor(), expected.detach())


def test_dtensors():
    tensor = dtensor()
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(DEVICE, (hvd.size(),))
    torch.manual_seed(5)
    left, right = torch.randn(4 * hvd.size(), 6), torch.randn(6, 2 * hvd.size())
    rows = tensor.distribute_tensor(left, mesh, [tensor.Shard(0)])
    columns = tensor.distribute_tensor(right, mesh, [tensor.Shard(1)])
    assert torch.equal(rows.to_local(), own(left))
    product = rows @ columns.redistribute(mesh, [tensor.Replicate()])
    torch.testing.assert_close(product.full_tensor(), left @ right)
    turned = rows.redistribute(mesh, [tensor.Shard(1)])
    assert torch.equal(turned.full_tensor(), left)
    torch.testing.assert_close(rows.sum().full_tensor(), left.sum())


def test_a_mesh_of_two_dimensions():
    if hvd.size() != 4:
        pytest.skip("needs four ranks")
    tensor = dtensor()
    from torch.distributed.device_mesh import init_device_mesh

    for ranks in ([0, 2], [1, 3], [0, 1], [2, 3]):
        prepare_group(ranks)
    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("outer", "inner"))
    whole = torch.arange(64.0).reshape(8, 8)
    spread = tensor.distribute_tensor(whole, mesh, [tensor.Shard(0), tensor.Shard(1)])
    assert spread.to_local().shape == (4, 4)
    assert torch.equal(spread.full_tensor(), whole)
    torch.testing.assert_close(spread.sum(0).full_tensor(), whole.sum(0))


def test_a_copy_of_the_module_inside_ddp_can_be_saved():
    model = train(DistributedDataParallel(network()), steps=1)
    other = network()
    other.load_state_dict(copy.deepcopy(model.module.state_dict()))
    assert_same(other, model.module)
