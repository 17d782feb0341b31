"""Collectives among some of the ranks: static, added and removed sets, apart and overlapping."""

import copy
import os
import random

import pytest
import torch

import horovod.torch as hvd
from horovod.common import process_sets

SIZE = int(os.environ.get("HOROVOD_SIZE", "1"))
NOT_A_MEMBER = "is not a member of the provided process set"
NOT_REGISTERED = "Process set provided does not exist, or has not been registered"


@pytest.fixture(autouse=True)
def _switch(monkeypatch, leave):
    monkeypatch.delenv("HOROVOD_DYNAMIC_PROCESS_SETS", raising=False)
    hvd.shutdown()
    yield
    leave()
    # The session ends with a world that has no sets.
    hvd.init()


@pytest.fixture
def dynamic():
    hvd.init(process_sets="dynamic")


def halves():
    middle = hvd.size() // 2
    return list(range(middle)), list(range(middle, hvd.size()))


def own_half():
    sets = [hvd.add_process_set(ranks) for ranks in halves()]
    return next(chosen for chosen in sets if chosen.included())


def by_rank(ranks, value):
    return torch.tensor([float(value(rank)) for rank in ranks])


def use(chosen):
    """Every collective on a set, on a member of it."""
    ranks, size = chosen.ranks, chosen.size()
    own = torch.full((size, 2), float(hvd.rank()))
    everyones = by_rank(ranks, float)
    assert chosen.rank() == ranks.index(hvd.rank())
    total = everyones.sum()
    assert hvd.allreduce(own, op=hvd.Sum, process_set=chosen).eq(total).all()
    assert torch.allclose(hvd.allreduce(own, process_set=chosen), total.div(size).expand(size, 2))
    in_place = own.clone()
    assert hvd.allreduce_(in_place, op=hvd.Max, process_set=chosen) is in_place
    assert in_place.eq(everyones.max()).all()
    for result in hvd.grouped_allreduce([own, own.double()], op=hvd.Sum, process_set=chosen):
        assert result.eq(total).all()
    rows = everyones.repeat_interleave(size)[:, None].expand(-1, 2)
    assert torch.equal(hvd.allgather(own, process_set=chosen), rows)
    assert torch.equal(hvd.synchronize(hvd.allgather_async(own, process_set=chosen)), rows)
    for result in hvd.grouped_allgather([own, own], process_set=chosen):
        assert torch.equal(result, rows)
    for root in ranks:
        assert hvd.broadcast(own, root, process_set=chosen).eq(root).all()
        target = own.clone()
        assert hvd.broadcast_(target, root, process_set=chosen).eq(root).all()
    column = everyones[:, None].expand(-1, 2)
    assert torch.equal(hvd.alltoall(own, process_set=chosen), column)
    received, numbers = hvd.alltoall(own, [1] * size, process_set=chosen)
    assert torch.equal(received, column)
    assert numbers.tolist() == [1] * size
    part = hvd.reducescatter(own, op=hvd.Sum, process_set=chosen)
    assert part.shape == (1, 2)
    assert part.eq(total).all()
    for part in hvd.grouped_reducescatter([own, own], op=hvd.Sum, process_set=chosen):
        assert part.eq(total).all()
    sparse = hvd.sparse_allreduce_async(own.to_sparse(), "sparse", hvd.Average, chosen)()
    assert torch.allclose(sparse.to_dense(), total.div(size).expand(size, 2))
    assert hvd.broadcast_object({"from": hvd.rank()}, ranks[-1], process_set=chosen) == {
        "from": ranks[-1]
    }
    hvd.barrier(process_set=chosen)


def test_sets_given_to_init_have_ids_in_order_and_work(leave):
    first, second = ([0], list(range(1, SIZE)))
    sets = [hvd.ProcessSet(first), hvd.ProcessSet(reversed(second))]
    hvd.init(process_sets=sets)
    assert [chosen.process_set_id for chosen in sets] == [1, 2]
    assert str(sets[1]) == f"ProcessSet(process_set_id=2, ranks={second}, mpi_comm=None)"
    listed = process_sets._basics._get_process_set_ids_and_ranks()
    assert listed == {0: list(range(SIZE)), 1: first, 2: second}
    assert [chosen.size() for chosen in sets] == [1, hvd.size() - 1]
    assert [chosen.included() for chosen in sets] == [hvd.rank() == 0, hvd.rank() != 0]
    other, own = sets if hvd.rank() else reversed(sets)
    with pytest.raises(ValueError, match=r"^Process is not part of provided process set\.$"):
        other.rank()
    use(own)
    use(hvd.global_process_set)
    leave()
    assert [chosen.process_set_id for chosen in sets] == [None, None]
    assert own.size() is None


def test_ids_begin_again_in_the_next_world(leave):
    chosen = hvd.ProcessSet([0])
    for _ in range(3):
        hvd.init(process_sets=[chosen])
        assert chosen.process_set_id == 1
        if chosen.included():
            use(chosen)
        leave()


def test_a_duplicate_fails_and_a_valid_list_works_afterwards(leave):
    everyone = list(range(SIZE))
    for wrong in (
        [hvd.ProcessSet([0]), hvd.ProcessSet([1]), hvd.ProcessSet([0])],
        [hvd.ProcessSet([0]), hvd.ProcessSet([1]), hvd.ProcessSet(reversed(everyone))],
    ):
        with pytest.raises(ValueError) as error:
            hvd.init(process_sets=wrong)
        assert str(error.value) == (
            "Horovod could not be initialized because process_sets entry number 2 is a duplicate: "
            f"{wrong[2]}"
        )
        assert not hvd.is_initialized()
        assert [chosen.process_set_id for chosen in wrong] == [None] * 3
    sets = wrong[:2]
    hvd.init(process_sets=sets)
    assert [chosen.process_set_id for chosen in sets] == [1, 2]
    # A second call finds them.
    again = hvd.ProcessSet([1])
    hvd.init(process_sets=[again])
    assert again.process_set_id == 2
    with pytest.raises(ValueError, match="Horovod has been initialized without"):
        hvd.init(process_sets=[hvd.ProcessSet([99])])
    leave()
    assert again.process_set_id is None


@pytest.mark.parametrize("ranks", [[0, 99], [-1], [0, 0]])
def test_ranks_that_are_not_there_fail_on_every_rank(ranks):
    with pytest.raises(ValueError):
        hvd.init(process_sets=[hvd.ProcessSet(ranks)])
    assert not hvd.is_initialized()
    hvd.init(process_sets="dynamic")
    with pytest.raises(ValueError):
        hvd.add_process_set(ranks)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()


def test_all_ranks_as_a_communicator_are_the_world():
    hvd.init(list(range(SIZE)))
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()


def test_some_ranks_as_a_communicator_are_refused():
    with pytest.raises(NotImplementedError, match=r"horovodrun -np N.*process_sets"):
        hvd.init([0])
    assert not hvd.is_initialized()


def test_without_the_switch_sets_stay_as_they_are():
    chosen = hvd.ProcessSet([0])
    hvd.init(process_sets=[chosen])
    with pytest.raises(ValueError) as error:
        hvd.add_process_set([1])
    assert str(error.value) == (
        "Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow adding process sets after Horovod "
        "initialization."
    )
    with pytest.raises(ValueError, match="=1 to allow removing process sets after"):
        hvd.remove_process_set(chosen)
    assert chosen.process_set_id == 1


def test_the_switch_can_be_a_variable(monkeypatch):
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    hvd.init()
    assert hvd.add_process_set([0]).process_set_id == 1


@pytest.mark.usefixtures("dynamic")
def test_sets_come_and_go_and_ids_are_used_again_in_the_order_they_were_freed():
    first, second = (hvd.add_process_set(ranks) for ranks in halves())
    third = hvd.add_process_set(hvd.ProcessSet([hvd.size() - 1, 0])) if hvd.size() > 2 else None
    for chosen in (first, second, third):
        if chosen is not None and chosen.included():
            use(chosen)
    with pytest.raises(ValueError) as error:
        hvd.add_process_set(reversed(second.ranks))
    assert str(error.value) == (
        "Attempted to add a duplicate process set: "
        f"ProcessSet(process_set_id=None, ranks={second.ranks}, mpi_comm=None)"
    )
    with pytest.raises(ValueError, match="Attempted to add a duplicate process set"):
        hvd.add_process_set(range(hvd.size()))
    assert hvd.remove_process_set(second)
    assert hvd.remove_process_set(first)
    assert (first.process_set_id, second.process_set_id) == (None, None)
    assert not hvd.remove_process_set(first)
    assert not hvd.remove_process_set(hvd.global_process_set)
    # Another set takes the id, with other members and as if nothing had ever been sent.
    newcomer = hvd.add_process_set([0])
    assert newcomer.process_set_id == 2
    assert hvd.add_process_set(second.ranks).process_set_id == 1
    if newcomer.included():
        use(newcomer)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()


@pytest.mark.usefixtures("dynamic")
def test_sets_that_share_no_rank_go_their_own_pace():
    own = own_half()
    rounds = 40 if 0 in own.ranks else 7
    for turn in range(rounds):
        tensors = [torch.full((n * 300 + 1,), float(n + turn)) for n in range(5)]
        handles = [
            hvd.allreduce_async_(tensor, name=f"t{n}", op=hvd.Sum, process_set=own)
            for n, tensor in enumerate(tensors)
        ]
        for number, handle in enumerate(handles):
            assert hvd.synchronize(handle).eq((number + turn) * own.size()).all()
        assert hvd.allreduce(torch.ones(3), op=hvd.Sum, process_set=own).eq(own.size()).all()
    # Members of different sets have had different numbers of unnamed tensors.
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()


@pytest.mark.usefixtures("dynamic")
def test_one_name_may_be_in_flight_in_several_sets_at_once():
    size = hvd.size()
    lists = [list(range(size - 1)), list(range(1, size))]
    if size > 2:
        lists.append([0, size - 1])
    sets = [*map(hvd.add_process_set, lists), hvd.global_process_set]
    for turn in range(10):
        handles = []
        for chosen in sets if turn % 2 else reversed(sets):
            if chosen.included():
                tensor = torch.full((1000,), float(turn))
                how = {"name": "same", "op": hvd.Sum, "process_set": chosen}
                handles.append((hvd.allreduce_async_(tensor, **how), chosen))
        for handle, chosen in handles if hvd.rank() % 2 else reversed(handles):
            assert hvd.synchronize(handle).eq(turn * chosen.size()).all()


@pytest.mark.usefixtures("dynamic")
def test_ranks_may_submit_to_overlapping_sets_in_different_orders():
    size = hvd.size()
    sets = [hvd.add_process_set(range(size - 1)), hvd.add_process_set(range(1, size))]
    sets.append(hvd.global_process_set)
    members = [chosen for chosen in sets if chosen.included()]
    for turn in range(5):
        work = [(chosen, number) for chosen in members for number in range(12)]
        random.Random(100 * hvd.rank() + turn).shuffle(work)
        handles = []
        for chosen, number in work:
            tensor = torch.full((number * 700 + 1,), float(number))
            how = {"name": f"t{number}", "op": hvd.Sum, "process_set": chosen}
            handles.append((hvd.allreduce_async_(tensor, **how), number * chosen.size()))
        for handle, expected in handles:
            assert hvd.synchronize(handle).eq(expected).all()


@pytest.mark.usefixtures("dynamic")
def test_tensors_of_every_size_in_sets_of_every_size():
    sets = [hvd.add_process_set(range(length)) for length in range(1, hvd.size())]
    for chosen in (*sets, hvd.global_process_set):
        if not chosen.included():
            continue
        total = sum(rank + 1 for rank in chosen.ranks)
        for length in (1, 5000, 16384, 300_001):
            tensor = torch.full((length,), hvd.rank() + 1)
            assert hvd.allreduce(tensor, op=hvd.Sum, process_set=chosen).eq(total).all()
            assert hvd.allgather(tensor, process_set=chosen).sum() == total * length
            assert hvd.broadcast(tensor, 0, process_set=chosen).eq(1).all()
            rows = tensor.repeat(chosen.size())
            assert hvd.alltoall(rows, process_set=chosen).sum() == total * length
            part = hvd.reducescatter(rows, op=hvd.Sum, process_set=chosen)
            assert part.eq(total).all()
            assert part.shape == tensor.shape
            how = {"op": hvd.Sum, "postscale_factor": 2.0, "process_set": chosen}
            assert hvd.allreduce_(tensor, **how).eq(2 * total).all()


@pytest.mark.usefixtures("dynamic")
def test_ranks_that_do_not_agree_on_a_set_are_told_and_the_world_goes_on():
    for _ in range(2):
        with pytest.raises((ValueError, hvd.HorovodInternalError), match="ismatch"):
            hvd.add_process_set([0] if hvd.rank() == 0 else [1])
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()
    assert hvd.add_process_set([0]).process_set_id == 1


@pytest.mark.usefixtures("dynamic")
def test_a_set_without_rank_zero():
    chosen = hvd.add_process_set(range(1, hvd.size()))
    if hvd.rank() != 0:
        for _ in range(20):
            use(chosen)
    hvd.barrier()


CALLS = {
    "allreduce": lambda chosen: hvd.allreduce(torch.ones(4), process_set=chosen),
    "grouped_allreduce": lambda chosen: hvd.grouped_allreduce([torch.ones(4)], process_set=chosen),
    "allgather": lambda chosen: hvd.allgather(torch.ones(4), process_set=chosen),
    "grouped_allgather": lambda chosen: hvd.grouped_allgather([torch.ones(4)], process_set=chosen),
    "broadcast": lambda chosen: hvd.broadcast(torch.ones(4), 0, process_set=chosen),
    "alltoall": lambda chosen: hvd.alltoall(torch.ones(12), process_set=chosen),
    "reducescatter": lambda chosen: hvd.reducescatter(torch.ones(4), process_set=chosen),
    "grouped_reducescatter": lambda chosen: hvd.grouped_reducescatter(
        [torch.ones(4)], process_set=chosen
    ),
    "barrier": lambda chosen: hvd.barrier(process_set=chosen),
    "broadcast_object": lambda chosen: hvd.broadcast_object(1, 0, process_set=chosen),
}


@pytest.mark.usefixtures("dynamic")
def test_others_are_told_that_they_are_no_members():
    chosen = hvd.add_process_set([0])
    for call in CALLS.values():
        if hvd.rank() == 0:
            call(chosen)
            continue
        with pytest.raises(ValueError) as error:
            call(chosen)
        assert f"Rank {hvd.rank()} {NOT_A_MEMBER}" in str(error.value)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()


@pytest.mark.usefixtures("dynamic")
def test_a_set_that_is_not_registered_is_refused():
    removed = hvd.add_process_set([0])
    stale = copy.copy(removed)
    hvd.remove_process_set(removed)
    for chosen in (removed, stale, hvd.ProcessSet([0, 1])):
        for call in CALLS.values():
            with pytest.raises(ValueError, match=NOT_REGISTERED):
                call(chosen)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()


@pytest.mark.usefixtures("dynamic")
def test_a_root_outside_the_set_is_refused():
    chosen = hvd.add_process_set(range(1, hvd.size()))
    if chosen.included():
        with pytest.raises(ValueError, match="broadcast received invalid root rank 0 for provided"):
            hvd.broadcast(torch.ones(1), 0, process_set=chosen)
        assert hvd.broadcast(torch.tensor([hvd.rank()]), 1, process_set=chosen) == 1


@pytest.mark.usefixtures("dynamic")
def test_gradients_stay_in_the_set():
    own = own_half()
    size, weight = own.size(), float(hvd.rank() + 1)
    total = float(sum(rank + 1 for rank in own.ranks))
    tensor = torch.ones(2 * size, requires_grad=True)

    def gradient(result):
        return torch.autograd.grad((result * weight).sum(), tensor)[0]

    summed = hvd.allreduce(tensor, op=hvd.Sum, process_set=own)
    assert gradient(summed).eq(total).all()
    assert torch.allclose(
        gradient(hvd.allgather(tensor, process_set=own)), torch.tensor(total / size)
    )
    root = own.ranks[-1]
    expected = total / size if hvd.rank() == root else 0.0
    assert torch.allclose(
        gradient(hvd.broadcast(tensor, root, process_set=own)), torch.tensor(expected)
    )
    weights = by_rank(own.ranks, lambda rank: rank + 1).repeat_interleave(2)
    assert torch.equal(gradient(hvd.alltoall(tensor, process_set=own)), weights)
    share = hvd.reducescatter(tensor, op=hvd.Sum, process_set=own)
    assert torch.equal(gradient(share), weights * size)
