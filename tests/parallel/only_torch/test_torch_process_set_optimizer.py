"""The distributed optimizer in process sets."""

import copy
import os

import pytest
import torch
from training import assert_continued_alike, batch, flat, loss_of, network, sgd

import horovod.torch as hvd

SIZE = int(os.environ.get("HOROVOD_SIZE", "1"))
SETS = {
    "halves": [list(range(SIZE // 2)), list(range(SIZE // 2, SIZE))],
    "without rank zero": [list(range(1, SIZE))],
}


@pytest.fixture(params=SETS)
def sets(request, leave):
    hvd.shutdown()
    sets = [hvd.ProcessSet(ranks) for ranks in SETS[request.param]]
    hvd.init(process_sets=sets)
    yield sets
    leave()
    # The session must end in a world without process sets.
    hvd.init()


def reference(ranks, steps):
    model = network()
    optimizer = sgd(model)
    for step in range(steps):
        optimizer.zero_grad()
        (sum(loss_of(model, batch(rank, step)) for rank in ranks) / len(ranks)).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("groups", [0, 2])
def test_each_set_trains_its_own_model_and_others_train_alone(sets, groups):
    steps = 12
    own = next((chosen for chosen in sets if chosen.included()), sets[0])
    model = network()
    optimizer = hvd.DistributedOptimizer(
        sgd(model), model.named_parameters(), groups=groups, process_set=own
    )
    assert (optimizer._reducer is not None) == own.included()
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, batch(hvd.rank(), step)).backward()
        optimizer.step()
    expected = reference(own.ranks if own.included() else [hvd.rank()], steps)
    for parameter, right in zip(model.parameters(), expected.parameters()):
        assert torch.allclose(parameter, right, rtol=1e-4, atol=1e-6)
    if own.included():
        mine = flat(model)
        first = hvd.broadcast(mine, own.ranks[0], process_set=own)
        assert torch.equal(first.view(torch.int32), mine.view(torch.int32))


def test_sparse_gradients_are_averaged_over_the_set(sets):
    own = next((chosen for chosen in sets if chosen.included()), sets[0])
    model = torch.nn.Embedding(SIZE + 1, 2, sparse=True)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), process_set=own)
    model(torch.tensor([hvd.rank()])).sum().backward()
    optimizer.step()
    ranks = own.ranks if own.included() else [hvd.rank()]
    expected = torch.zeros(SIZE + 1, 2)
    expected[ranks] = -1 / len(ranks)
    assert torch.allclose(model.weight, expected)


def test_an_unregistered_set_is_rejected(sets):
    model = network()
    with pytest.raises(ValueError, match="has not been registered"):
        hvd.DistributedOptimizer(sgd(model), process_set=hvd.ProcessSet([0]))


def test_optimizers_of_overlapping_sets_share_names(sets):
    own = next((chosen for chosen in sets if chosen.included()), None)
    small, large = network(), network()
    inner = hvd.DistributedOptimizer(
        sgd(small), small.named_parameters(), process_set=own or sets[0]
    )
    outer = hvd.DistributedOptimizer(sgd(large), large.named_parameters())
    for step in range(5):
        for model, optimizer in ((small, inner), (large, outer)):
            optimizer.zero_grad()
            loss_of(model, batch(hvd.rank(), step)).backward()
        outer.step()
        inner.step()
    expected = reference(range(SIZE), 5)
    for parameter, right in zip(large.parameters(), expected.parameters()):
        assert torch.allclose(parameter, right, rtol=1e-4, atol=1e-6)


def test_a_copy_of_an_optimizer_belongs_to_the_same_set(sets):
    own = next((chosen for chosen in sets if chosen.included()), sets[0])
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), process_set=own)
    copies = copy.deepcopy((model, optimizer))
    assert copies[1]._plan.reduction.process_set is own
    for net, steps in ((model, optimizer), copies):
        loss_of(net, batch(hvd.rank(), 0)).backward()
        steps.step()
    assert_continued_alike(flat(model), flat(copies[0]))
