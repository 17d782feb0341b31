"""Process sets: every collective among some of the ranks, and the errors on the others."""

import copy

import numpy as np
import pytest
from world import rank, ranks, share, size

COLLECTIVES = {
    "allreduce": [],
    "grouped_allreduce": [],
    "allgather": [],
    "grouped_allgather": [],
    "broadcast": [0],
    "alltoall": [],
    "reducescatter": [],
    "grouped_reducescatter": [],
}


@pytest.fixture
def chosen(framework):
    """A set without rank 0; with two ranks, only rank 1."""
    made = framework.hvd.add_process_set(range(1, size()))
    yield made
    framework.hvd.remove_process_set(made)


def call(framework, kind, process_set, rows=4):
    tensor = framework.tensor(np.full((rows, 2), rank()))
    how = {"process_set": process_set}
    if kind.startswith("grouped"):
        return framework.several(kind, [tensor, tensor], **how)[-1]
    return framework.one(kind, tensor, *COLLECTIVES[kind], **how)


def test_every_collective_among_the_members(framework, chosen):
    assert chosen.included() == (rank() != 0)
    if rank() == 0:
        return
    members = chosen.ranks
    rows = 2 * len(members) + 1
    own = framework.tensor(np.full((rows, 2), rank()))
    everyones = [np.full((rows, 2), each) for each in members]
    how = {"process_set": chosen}
    total = np.sum(everyones, axis=0)

    def check(result, expected):
        np.testing.assert_allclose(framework.values(result), expected, rtol=1e-6)

    check(framework.one("allreduce", own, op=framework.hvd.Sum, **how), total)
    check(framework.one("allreduce", own, **how), total / len(members))
    check(framework.one("allreduce", own, op=framework.hvd.Max, **how), np.max(everyones, axis=0))
    for result in framework.several("grouped_allreduce", [own, own], **how):
        check(result, total / len(members))
    check(framework.one("allgather", own, **how), np.concatenate(everyones))
    for result in framework.several("grouped_allgather", [own, own], **how):
        check(result, np.concatenate(everyones))
    for root in members:
        check(framework.one("broadcast", own, root, **how), np.full((rows, 2), root))
    part = share(total, chosen.rank(), len(members))
    check(framework.one("reducescatter", own, op=framework.hvd.Sum, **how), part)
    for result in framework.several("grouped_reducescatter", [own, own], **how):
        check(result, part / len(members))
    even = framework.tensor(np.full(len(members), rank()))
    check(framework.one("alltoall", even, **how), members)


@pytest.mark.needs("adasum")
def test_adasum_among_the_members(framework, chosen):
    if chosen.included():
        same = framework.tensor([1.5, -2.0])
        how = {"op": framework.hvd.Adasum, "process_set": chosen}
        assert framework.values(framework.one("allreduce", same, **how)).tolist() == [1.5, -2.0]


@pytest.mark.needs("ragged")
def test_different_numbers_of_rows_among_the_members(framework, chosen):
    if rank() == 0:
        return
    own = framework.tensor(np.full((rank(), 2), rank()))
    rows = [np.full((each, 2), each) for each in chosen.ranks]
    gathered = framework.one("allgather", own, process_set=chosen)
    assert np.array_equal(framework.values(gathered), np.concatenate(rows))
    splits = [place + 1 for place in range(chosen.size())]
    own = framework.tensor(np.full((sum(splits), 2), rank()))
    received, numbers = framework.one("alltoall", own, splits, process_set=chosen)
    assert framework.values(numbers).tolist() == [chosen.rank() + 1] * chosen.size()
    assert len(framework.values(received)) == (chosen.rank() + 1) * chosen.size()


def test_sets_progress_independently(framework):
    sets = [framework.hvd.add_process_set([each]) for each in ranks()]
    own = sets[rank()]
    for turn in range(rank() + 1):
        result = framework.one("allreduce", framework.tensor([turn + 1.0]), process_set=own)
        assert framework.values(result).tolist() == [turn + 1.0]
    # The members have submitted different numbers of unnamed tensors.
    total = framework.one("allreduce", framework.tensor([1.0]), op=framework.hvd.Sum)
    assert framework.values(total).tolist() == [size()]
    for made in sets:
        assert framework.hvd.remove_process_set(made)


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_other_ranks_get_an_error(framework, kind):
    alone = framework.hvd.add_process_set([0])
    if rank() == 0:
        call(framework, kind, alone)
    else:
        with pytest.raises(framework.invalid, match=f"Rank {rank()} is not a member of the"):
            call(framework, kind, alone, rows=4 * size())
    framework.hvd.remove_process_set(alone)


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_an_unregistered_set_is_rejected(framework, kind):
    removed = framework.hvd.add_process_set([0])
    stale = copy.copy(removed)
    framework.hvd.remove_process_set(removed)
    for wrong in (removed, stale, framework.hvd.ProcessSet([0, 1])):
        with pytest.raises(ValueError, match="Process set provided does not exist, or has not"):
            call(framework, kind, wrong)


def test_a_root_outside_the_set_is_rejected(framework, chosen):
    if chosen.included():
        with pytest.raises(framework.invalid, match="invalid root rank 0 for provided process set"):
            framework.one("broadcast", framework.tensor([1.0]), 0, process_set=chosen)


@pytest.mark.needs("gradients")
@pytest.mark.parametrize("kind", [kind for kind in COLLECTIVES if "grouped" not in kind])
def test_gradients_stay_in_the_set(framework, chosen, kind):
    if rank() == 0:
        return
    members = chosen.ranks
    call = framework.call(kind)

    def loss(tensor):
        arguments = [members[-1]] if kind == "broadcast" else []
        return call(tensor, *arguments, process_set=chosen) * float(rank() + 1)

    total = sum(each + 1 for each in members)
    factor = framework.gradient_factors.get(kind, lambda size: 1)(len(members))
    by_rows = np.repeat([each + 1.0 for each in members], 2)
    expected = {
        "allreduce": np.full(len(by_rows), total / len(members)),
        "allgather": np.full(len(by_rows), total * factor),
        "broadcast": np.full(len(by_rows), total * factor * (rank() == members[-1])),
        "alltoall": by_rows,
        "reducescatter": by_rows * factor / len(members),
    }[kind]
    gradient = framework.derivative(loss, np.ones(len(by_rows)))
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


@pytest.mark.needs("barrier")
def test_a_barrier_among_the_members(framework, chosen):
    if chosen.included():
        framework.run(lambda: framework.hvd.barrier(process_set=chosen))
    else:
        with pytest.raises(framework.invalid, match="Rank 0 is not a member"):
            framework.run(lambda: framework.hvd.barrier(process_set=chosen))
