"""The state of torch on several ranks: how it is synchronized, and stopping together."""

import pytest
import torch

import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.runner.elastic.worker import HostUpdateResult


def training(seed, kind=torch.optim.SGD, **options):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = kind(model.parameters(), **options)
    return model, hvd.DistributedOptimizer(optimizer, model.named_parameters())


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(5, 3)).square().mean().backward()
    optimizer.step()


def contents(model, optimizer):
    state = optimizer.state_dict()
    tensors = [*model.state_dict().values()]
    for gathered in state["state"].values():
        tensors.extend(value for value in gathered.values() if isinstance(value, torch.Tensor))
    return [tensor.tolist() for tensor in tensors], state["param_groups"]


def same_everywhere(value):
    return all(other == value for other in hvd.allgather_object(value))


@pytest.mark.parametrize(
    ("kind", "options"),
    [(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}), (torch.optim.AdamW, {"lr": 0.1})],
)
def test_a_new_rank_gets_the_state_of_the_survivor(kind, options):
    """Only rank 0 has trained: only its optimizer has momenta and a changed learning rate."""
    model, optimizer = training(hvd.rank(), kind, **options)
    sampler = hvd.elastic.ElasticSampler(range(100))
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
    if hvd.rank() == 0:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.025
        sampler.record_batch(0, 10)
        state.epoch = 4
        state.save()
    state.sync()
    assert same_everywhere(contents(model, optimizer))
    assert optimizer.state_dict()["state"] and optimizer.param_groups[0]["lr"] == 0.025
    assert state.epoch == 4 and sampler.processed_num == 10 * hvd.size()
    # The received state is saved, and the ranks can continue to train.
    kept = contents(model, optimizer)
    step(model, optimizer)
    state.restore()
    assert contents(model, optimizer) == kept
    step(model, optimizer)
    assert same_everywhere(contents(model, optimizer)[0][:2])


def test_samples_are_divided_among_all_ranks():
    sampler = hvd.elastic.ElasticSampler(range(23))
    shares = hvd.allgather_object(list(sampler))
    assert {len(share) for share in shares} == {len(sampler)}
    assert sorted({index for share in shares for index in share}) == list(range(23))


def test_synchronizing_a_state_redistributes_the_samples_on_every_rank():
    sampler = hvd.elastic.ElasticSampler(range(8 * hvd.size()), shuffle=False)
    state = hvd.elastic.TorchState(sampler=sampler)
    if hvd.rank() == 0:
        sampler.record_batch(0, 4)
    state.sync()
    # Half of the epoch is done, on rank 0 as well.
    shares = hvd.allgather_object(list(sampler))
    assert [len(share) for share in shares] == [4] * hvd.size()
    left = {sample for share in shares for sample in share}
    assert left == set(range(4 * hvd.size(), 8 * hvd.size()))


def test_all_ranks_stop_when_rank_0_learns_of_an_update():
    state = hvd.elastic.TorchState(epoch=0)
    # An update that only another rank knows of does not count, because the others may not know it.
    if hvd.rank() == 1:
        state.on_hosts_updated(1.0, HostUpdateResult.added)
    state.commit()
    if hvd.rank() == 0:
        state.on_hosts_updated(2.0, HostUpdateResult.removed)
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.commit()
    assert caught.value.skip_sync
    state.check_host_updates()


def test_the_state_is_sent_if_one_rank_needs_it():
    state = hvd.elastic.TorchState(epoch=0)
    assert state._is_needed(hvd.rank() == hvd.size() - 1)
    assert not state._is_needed(False)


def test_ranks_form_a_new_world_and_continue_training():
    """Whatever ends a world, the result is that of an uninterrupted run."""
    model, optimizer = training(hvd.rank(), lr=0.1, momentum=0.9)
    worlds = []
    errors = {
        2: HorovodInternalError("x"),
        5: HostsUpdatedInterrupt(),
        6: HostsUpdatedInterrupt(True),
    }

    @hvd.elastic.run
    def train(state):
        worlds.append(hvd.size())
        while state.batch < 8:
            torch.manual_seed(100 * hvd.rank() + state.batch)
            step(model, optimizer)
            state.batch += 1
            if state.batch % 4 == 0:
                state.commit()
            if state.batch in errors:
                # Otherwise the first rank to leave would end the world during the others' last
                # collective.
                hvd.barrier()
                raise errors.pop(state.batch)

    train(hvd.elastic.TorchState(model, optimizer, batch=0))
    assert worlds == [hvd.size()] * 4
    assert same_everywhere(contents(model, optimizer)[0][:2])
    interrupted = contents(model, optimizer)[0][:2]
    model, optimizer = training(0, lr=0.1, momentum=0.9)
    for batch in range(8):
        torch.manual_seed(100 * hvd.rank() + batch)
        step(model, optimizer)
    assert contents(model, optimizer)[0][:2] == interrupted
