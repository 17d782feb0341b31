"""The elastic state for torch in a world of one, and how the sampler divides samples."""

import copy

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import horovod.torch as hvd
from horovod import _native
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.runner.elastic.worker import HostUpdateResult
from horovod.torch.elastic import sampler as sampler_module
from horovod.torch.elastic import state as state_module


@pytest.fixture(autouse=True)
def _world():
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
    )


@pytest.fixture
def optimizer(model):
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return hvd.DistributedOptimizer(plain, model.named_parameters())


def train(model, optimizer, steps=1):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()


def contents(model, optimizer):
    return copy.deepcopy((model.state_dict(), optimizer.state_dict()))


def assert_same(one, other):
    assert listed(one) == listed(other)


def listed(value):
    """A value with its tensors replaced by plain numbers."""
    if isinstance(value, dict):
        return {name: listed(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [listed(each) for each in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


def test_restore_returns_everything_to_the_last_commit(model, optimizer):
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=1, batch=0)
    assert state.model is model and state.optimizer is optimizer and state.epoch == 1
    train(model, optimizer, 2)
    state.epoch = 2
    state.commit()
    kept = contents(model, optimizer)
    # Twice: restored values must not alias the saved ones.
    for _ in range(2):
        train(model, optimizer, 3)
        state.epoch = 3
        state.restore()
        assert_same(contents(model, optimizer), kept)
        assert state.epoch == 2


def test_without_a_commit_restore_returns_to_the_start(model, optimizer):
    kept = contents(model, optimizer)
    state = hvd.elastic.TorchState(model, optimizer)
    train(model, optimizer)
    state.restore()
    assert_same(contents(model, optimizer), kept)


def test_a_commit_reuses_its_memory(model, optimizer):
    state = hvd.elastic.TorchState(model, optimizer)

    def addresses():
        saved = [state._handlers[name]._saved for name in ("model", "optimizer")]
        momenta = [each["momentum_buffer"] for each in saved[1]["state"].values()]
        return [tensor.data_ptr() for tensor in (*saved[0].values(), *momenta)]

    train(model, optimizer)
    state.commit()
    first = addresses()
    train(model, optimizer)
    state.commit()
    assert addresses() == first
    assert_same(state._handlers["model"]._saved, model.state_dict())


def test_schedulers_keep_their_parameter_groups(model, optimizer):
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler)
    train(model, optimizer)
    scheduler.step()
    state.commit()
    train(model, optimizer)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.025
    state.restore()
    state.sync()
    assert optimizer.param_groups[0]["lr"] == 0.05
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.025 and state.scheduler is scheduler


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="this scaler is for CUDA only")
def test_a_gradient_scaler_is_restored_too():
    scaler = state_module._GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(1))
    state = hvd.elastic.TorchState(scaler=scaler)
    scaler.update(2.0)
    state.restore()
    state.sync()
    assert state.scaler is scaler and scaler.get_scale() == 8.0


def test_gradients_of_an_unfinished_step_are_discarded(model, monkeypatch):
    # Makes reductions stay in flight, like among several ranks.
    monkeypatch.setattr(_native, "may_grow", lambda: True)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer)
    model(torch.randn(8, 3)).sum().backward()
    state.restore()
    assert all(parameter.grad is None for parameter in model.parameters())
    train(model, optimizer)


def test_a_new_object_replaces_the_old_one(model, optimizer):
    state = hvd.elastic.TorchState(model, optimizer)
    other = torch.nn.Linear(1, 1)
    state.model = other
    before = other.weight.item()
    with torch.no_grad():
        other.weight.zero_()
    state.restore()
    assert state.model is other and other.weight.item() == before


def test_extra_state_of_a_module_is_restored():
    class Counting(torch.nn.Linear):
        count = 0

        def get_extra_state(self):
            return self.count

        def set_extra_state(self, count):
            self.count = count

    model = Counting(2, 2)
    state = hvd.elastic.TorchState(model)
    model.count = 3
    state.commit()
    model.count = 4
    state.restore()
    state.sync()
    assert model.count == 3


def test_handlers_can_be_added_for_other_types():
    class Box:
        content = 1

    class BoxHandler(state_module.StateHandler):
        def save(self):
            self._saved = self.value.content

        def restore(self):
            self.value.content = self._saved

        def sync(self):
            pass

    former = state_module.get_handler_registry()
    try:
        state_module.set_handler_registry([*former, (Box, BoxHandler)])
        state = hvd.elastic.TorchState(box=Box())
        state.box.content = 2
        state.restore()
        assert state.box.content == 1
    finally:
        state_module.set_handler_registry(former)


def test_a_failed_sync_is_undone(model, optimizer, monkeypatch):
    state = hvd.elastic.TorchState(model, optimizer, epoch=1)
    kept = contents(model, optimizer)
    calls = []

    def overwrite(params, root_rank):
        calls.append("parameters")
        for tensor in params.values():
            tensor.zero_()

    def fail(optimizer, root_rank):
        calls.append("optimizer")
        if calls.count("optimizer") == 1:
            raise HorovodInternalError("lost rank 0", ranks=[0], cause="signal")
        assert_same(contents(model, optimizer)[1], kept[1])

    def func(state):
        return calls

    monkeypatch.setattr(state_module, "broadcast_parameters", overwrite)
    monkeypatch.setattr(state_module, "broadcast_optimizer_state", fail)
    state.register_reset_callbacks([lambda: assert_same(contents(model, optimizer), kept)])
    assert hvd.elastic.run(func)(state) == ["parameters", "optimizer"] * 2


def test_training_continues_after_losses_and_host_changes(model, optimizer):
    """It must do the same steps as an undisturbed run."""
    data = torch.randn(12, 8, 3)

    def step(batch):
        optimizer.zero_grad()
        model(data[batch]).square().mean().backward()
        optimizer.step()

    before = contents(model, optimizer)
    trouble = {2: HorovodInternalError, 5: HostsUpdatedInterrupt, 7: HorovodInternalError}

    @hvd.elastic.run
    def training(state):
        while state.batch < len(data):
            step(state.batch)
            state.batch += 1
            if state.batch % 4 == 0:
                state.commit()
            if state.batch in trouble:
                raise trouble.pop(state.batch)

    state = hvd.elastic.TorchState(model, optimizer, batch=0)
    training(state)
    interrupted = contents(model, optimizer)
    model.load_state_dict(before[0])
    optimizer.load_state_dict(before[1])
    for batch in range(len(data)):
        step(batch)
    assert not trouble
    assert_same(contents(model, optimizer), interrupted)


def test_an_optimizer_made_in_a_small_world_works_in_a_larger_one(model, monkeypatch):
    """In a world of one that may grow, no choice depends on the number of ranks."""
    monkeypatch.setattr(_native, "may_grow", lambda: True)
    sent = []
    monkeypatch.setattr("horovod.torch.optimizer.broadcast_object", sent.append)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    hvd.DistributedOptimizer(plain, model.named_parameters(), groups=2)
    assert sent == []
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    combined = hvd.DistributedOptimizer(plain, model.named_parameters(), op=hvd.Adasum)
    assert "DeltaOptimizer" in [each.__name__ for each in type(combined).__mro__]


class Ranks:
    """Sets the rank and size that the sampler sees."""

    def __init__(self, monkeypatch):
        self.rank, self.size = 0, 1
        monkeypatch.setattr(sampler_module, "rank", lambda: self.rank)
        monkeypatch.setattr(sampler_module, "size", lambda: self.size)

    def samplers(self, size, dataset, **options):
        """One sampler for each rank of a world."""
        made = []
        for self.rank in range(size):
            self.size = size
            made.append(hvd.elastic.ElasticSampler(dataset, **options))
        return made

    def resize(self, samplers, size):
        """The samplers of the next world, each with the state of the last one."""
        state = samplers[0].state_dict()
        made = self.samplers(size, samplers[0].dataset, seed=samplers[0].seed)
        for self.rank, sampler in enumerate(made):
            sampler.load_state_dict(state)
        return made


@pytest.mark.parametrize("sizes", [(2, 3), (4, 1), (3, 5, 2), (1, 4, 4)])
@pytest.mark.parametrize("length", [64, 61, 7])
def test_every_sample_is_drawn_however_the_world_changes(monkeypatch, sizes, length):
    ranks, seen = Ranks(monkeypatch), []
    samplers = ranks.samplers(sizes[0], range(length), seed=5)
    for position, size in enumerate(sizes):
        if position:
            samplers = ranks.resize(samplers, size)
        assert len({len(sampler) for sampler in samplers}) == 1
        last = position == len(sizes) - 1
        batches = len(samplers[0]) if last else 2
        shares = [list(sampler) for sampler in samplers]
        for share, sampler in zip(shares, samplers):
            assert len(share) == len(sampler) == sampler.num_samples
            seen.extend(share[:batches])
            for batch in range(batches):
                sampler.record_batch(batch, 1)
    assert set(seen) == set(range(length))
    # Repeated samples even out the shares: fewer than one per rank and world.
    assert len(seen) - length < sum(sizes)


def test_each_epoch_has_its_own_order_and_starts_from_the_beginning(monkeypatch):
    (one,) = Ranks(monkeypatch).samplers(1, range(50))
    first = list(one)
    assert first != sorted(first) and sorted(first) == list(range(50))
    assert list(one) == first
    one.record_batch(0, 10)
    one.set_epoch(1)
    assert one.state_dict() == {"epoch": 1, "processed_num": 0}
    assert sorted(one) == list(range(50)) and list(one) != first
    (plain,) = Ranks(monkeypatch).samplers(1, range(50), shuffle=False)
    plain.record_batch(0, 48)
    plain.reset()
    assert plain.remaining_indices == [48, 49] == list(plain)
    plain.record_batch(1, 10)
    plain.reset()
    assert list(plain) == [] and len(plain) == 0 == plain.total_size


def test_fewer_samples_than_ranks_are_repeated(monkeypatch):
    samplers = Ranks(monkeypatch).samplers(5, range(2), shuffle=False)
    assert [list(sampler) for sampler in samplers] == [[0], [1], [0], [1], [0]]


def test_a_sampler_in_a_state_is_restored_and_reset(monkeypatch):
    ranks = Ranks(monkeypatch)
    sampler = hvd.elastic.ElasticSampler(TensorDataset(torch.arange(10)), shuffle=False)
    loader = DataLoader(sampler.dataset, batch_size=2, sampler=sampler)
    state = hvd.elastic.TorchState(sampler=sampler)
    sampler.record_batch(0, 2)
    state.commit()
    sampler.record_batch(1, 2)
    state.restore()
    assert sampler.processed_num == 2 and sampler.remaining_indices == list(range(2, 10))
    ranks.size = 2
    state.on_reset()
    assert [batch[0].tolist() for batch in loader] == [[2, 4], [6, 8]]


def test_a_host_update_interrupts_training(model, optimizer):
    state = hvd.elastic.TorchState(model, optimizer, epoch=0)
    state.commit()
    state.on_hosts_updated(12.5, HostUpdateResult.added | HostUpdateResult.removed)
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.check_host_updates()
    assert not caught.value.skip_sync and state._last_updated_timestamp == 12.5
