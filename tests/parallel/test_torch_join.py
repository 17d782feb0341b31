"""Ranks that run out of data before others: zeros in their place, and who came last."""

import pytest
import torch

import horovod.torch as hvd


def active(step, last):
    """The ranks that have a batch for this step: rank `last` has most of them."""
    return [rank for rank in range(hvd.size()) if step < batches_of(rank, last)]


def batches_of(rank, last):
    return 2 * ((rank - last - 1) % hvd.size()) + 1


@pytest.mark.parametrize("last", [0, -1])
def test_joined_ranks_count_as_zeros_and_all_learn_who_was_last(last):
    last %= hvd.size()
    for step in range(batches_of(hvd.rank(), last)):
        ranks = active(step, last)
        total = float(sum(rank + 1 for rank in ranks))
        tensor = torch.full((1000,), float(hvd.rank() + 1))
        assert hvd.allreduce(tensor, name=f"sum{step}", op=hvd.Sum).eq(total).all()
        # An average is one over all ranks, joined or not.
        assert torch.allclose(hvd.allreduce(tensor), torch.full((1000,), total / hvd.size()))
        handle = hvd.allreduce_async_(tensor.to(torch.bfloat16), op=hvd.Sum)
        assert hvd.synchronize(handle).eq(total).all()
        group = [torch.full((n,), hvd.rank() + 1) for n in (1, 0, 5000)]
        for result in hvd.grouped_allreduce(group, op=hvd.Sum):
            assert result.eq(total).all()
    assert hvd.join() == last


def test_after_a_join_everything_works_as_before():
    for turn in range(5):
        for _ in range(hvd.rank() * turn):
            hvd.allreduce(torch.ones(3))
        assert hvd.join() in range(hvd.size())
        # The ranks have had different numbers of unnamed tensors, and agree again.
        assert hvd.allreduce(torch.ones(3), op=hvd.Sum).eq(hvd.size()).all()
        assert hvd.allgather(torch.ones(hvd.rank())).eq(1).all()
        assert hvd.broadcast_object(turn, 1) == turn


def test_a_join_may_come_before_earlier_work_is_waited_for():
    tensors = [torch.full((10_000,), float(n)) for n in range(20)]
    handles = [
        hvd.allreduce_async_(tensor, name=f"early{n}", op=hvd.Sum)
        for n, tensor in enumerate(tensors)
    ]
    assert hvd.join(device=-1) in range(hvd.size())
    for number, handle in enumerate(handles):
        assert hvd.synchronize(handle).eq(number * hvd.size()).all()


CONFLICTS = {
    "Allgather": lambda name: hvd.allgather(torch.ones(2), name=name),
    "Broadcast": lambda name: hvd.broadcast(torch.ones(2), 1, name=name),
    "Alltoall": lambda name: hvd.alltoall(torch.ones(hvd.size()), name=name),
    "Reducescatter": lambda name: hvd.reducescatter(torch.ones(4), name=name),
}


@pytest.mark.parametrize("kind", CONFLICTS)
def test_what_zeros_cannot_stand_in_for_fails_while_a_rank_has_joined(kind):
    if hvd.rank() != 0:
        with pytest.raises(hvd.HorovodInternalError) as error:
            CONFLICTS[kind](f"conflict.{kind}")
        assert f"{kind} is not supported with Join at this time." in str(error.value)
        tensor = hvd.allreduce(torch.ones(1), name=f"still.{kind}", op=hvd.Sum)
        assert tensor == hvd.size() - 1
    assert hvd.join() in range(hvd.size())
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))


def batch(rank, step):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * rank + step))


def loss_of(model, data):
    return (model(data) - data[:, :2].sin()).square().mean()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


@pytest.mark.parametrize("groups", [0, 2])
def test_training_on_uneven_data_ends_with_the_last_ranks_parameters(groups):
    last = 1
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), groups=groups)
    for step in range(batches_of(hvd.rank(), last)):
        optimizer.zero_grad()
        loss_of(model, batch(hvd.rank(), step)).backward()
        optimizer.step()
    assert hvd.join() == last
    hvd.broadcast_parameters(model.state_dict(), last)

    alone = network()
    reference = sgd(alone)
    for step in range(batches_of(last, last)):
        reference.zero_grad()
        losses = [loss_of(alone, batch(rank, step)) for rank in active(step, last)]
        (sum(losses) / hvd.size()).backward()
        reference.step()
    for parameter, expected in zip(model.parameters(), alone.parameters()):
        assert torch.allclose(parameter, expected, rtol=1e-4, atol=1e-6)
