"""Joining while handles are open, and training on uneven data."""

import pytest
import torch
from training import batch, loss_of, network, sgd

import horovod.torch as hvd


def active(step, last):
    """The ranks that have a batch for this step; rank `last` has the most batches."""
    return [rank for rank in range(hvd.size()) if step < batches_of(rank, last)]


def batches_of(rank, last):
    return 2 * ((rank - last - 1) % hvd.size()) + 1


def test_a_rank_may_join_before_it_waits_for_earlier_operations():
    tensors = [torch.full((10_000,), float(n)) for n in range(20)]
    handles = [
        hvd.allreduce_async_(tensor, name=f"early{n}", op=hvd.Sum)
        for n, tensor in enumerate(tensors)
    ]
    assert hvd.join(device=-1) in range(hvd.size())
    for number, handle in enumerate(handles):
        assert hvd.synchronize(handle).eq(number * hvd.size()).all()


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
