"""Process sets: given to init, added and removed later; several in use at once."""

import os
import random

import pytest
import torch

import horovod.torch as hvd
from horovod.common import process_sets

SIZE = int(os.environ.get("HOROVOD_SIZE", "1"))


@pytest.fixture(autouse=True)
def _switch(monkeypatch, leave):
    monkeypatch.delenv("HOROVOD_DYNAMIC_PROCESS_SETS", raising=False)
    hvd.shutdown()
    yield
    leave()
    hvd.init(process_sets="dynamic")


@pytest.fixture
def dynamic():
    hvd.init(process_sets="dynamic")


def halves():
    middle = hvd.size() // 2
    return list(range(middle)), list(range(middle, hvd.size()))


def use(chosen):
    """Runs collectives on a set, called by a member of it."""
    assert chosen.rank() == chosen.ranks.index(hvd.rank())
    gathered = hvd.allgather(torch.tensor([hvd.rank()]), process_set=chosen)
    assert gathered.tolist() == chosen.ranks
    total = hvd.allreduce(torch.ones(3), op=hvd.Sum, process_set=chosen)
    assert total.eq(chosen.size()).all()


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


def test_ids_restart_in_the_next_world(leave):
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
def test_nonexistent_ranks_fail_on_every_rank(ranks):
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


def test_some_ranks_as_a_communicator_are_rejected():
    with pytest.raises(NotImplementedError, match=r"horovodrun -np N.*process_sets"):
        hvd.init([0])
    assert not hvd.is_initialized()


def test_without_the_switch_sets_cannot_change():
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


def test_the_switch_can_be_an_environment_variable(monkeypatch):
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    hvd.init()
    assert hvd.add_process_set([0]).process_set_id == 1


@pytest.mark.usefixtures("dynamic")
def test_sets_are_added_and_removed_and_ids_are_reused_in_the_order_they_were_freed():
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
    # Another set reuses the id, with other members and no state from before.
    added = hvd.add_process_set([0])
    assert added.process_set_id == 2
    assert hvd.add_process_set(second.ranks).process_set_id == 1
    if added.included():
        use(added)
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
def test_ranks_that_disagree_on_a_set_get_an_error_and_the_world_continues():
    for _ in range(2):
        with pytest.raises((ValueError, hvd.HorovodInternalError), match="ismatch"):
            hvd.add_process_set([0] if hvd.rank() == 0 else [1])
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()
    assert hvd.add_process_set([0]).process_set_id == 1
