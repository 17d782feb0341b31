"""Process sets in a world of one, where only the global set can exist."""

import copy
import os
import pickle

import pytest
import torch

import horovod.torch as hvd
from horovod.common import process_sets


@pytest.fixture(autouse=True)
def _shut_down(monkeypatch):
    # Setting and deleting it makes `monkeypatch` undo what a test does to it.
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "")
    hvd.shutdown()
    yield
    hvd.shutdown()


def test_both_modules_export_the_same_names():
    for name in ("ProcessSet", "add_process_set", "global_process_set", "remove_process_set"):
        assert getattr(hvd, name) is getattr(process_sets, name)


def test_the_global_process_set_knows_its_ranks_after_init():
    assert str(hvd.global_process_set) == "ProcessSet(process_set_id=0, ranks=[], mpi_comm=None)"
    hvd.init()
    assert str(hvd.global_process_set) == "ProcessSet(process_set_id=0, ranks=[0], mpi_comm=None)"
    chosen = hvd.global_process_set
    assert (chosen.size(), chosen.rank(), chosen.included()) == (1, 0, True)
    hvd.shutdown()
    for query in (chosen.size, chosen.rank, chosen.included):
        with pytest.raises(ValueError, match="Horovod has not been initialized"):
            query()


def test_all_sets_can_be_listed():
    basics = process_sets._basics
    with pytest.raises(ValueError, match="Horovod has not been initialized"):
        basics._get_process_set_ids_and_ranks()
    hvd.init()
    assert basics._get_process_set_ids_and_ranks() == {0: [0]}


def test_a_set_with_an_unknown_id_is_refused():
    hvd.init()
    chosen = hvd.ProcessSet([0])
    chosen.process_set_id = 99
    with pytest.raises(ValueError, match="Process set provided does not exist"):
        hvd.allreduce(torch.ones(1), process_set=chosen)


def test_an_unregistered_process_set_answers_none():
    for _ in range(2):
        chosen = hvd.ProcessSet([3, 1])
        assert str(chosen) == "ProcessSet(process_set_id=None, ranks=[1, 3], mpi_comm=None)"
        assert (chosen.size(), chosen.rank(), chosen.included()) == (None, None, None)
        hvd.init()
    assert hvd.ProcessSet(range(2, 0, -1)).ranks == [1, 2]


def test_anything_but_a_list_of_ranks_is_refused():
    for wrong in (["0"], [0.5], 3, None):
        with pytest.raises(ValueError) as error:
            hvd.ProcessSet(wrong)
        assert str(error.value) == (
            "ProcessSet should be initialized with a list of process ranks or an mpi4py Comm object"
        )


def test_communicators_are_kept_but_cannot_be_registered():
    communicator = type("Intracomm", (), {"__module__": "mpi4py.MPI"})()
    chosen = hvd.ProcessSet(communicator)
    assert chosen.mpi_comm is communicator
    with pytest.raises(ValueError, match=r"Horovod has not been built with MPI support\."):
        hvd.init(process_sets=[chosen])
    hvd.init(process_sets="dynamic")
    with pytest.raises(NotImplementedError, match="ranks of the members"):
        hvd.add_process_set(chosen)


def test_a_collective_on_an_unregistered_set_is_refused():
    hvd.init()
    chosen = hvd.ProcessSet([0])
    for call in (
        lambda: hvd.allreduce(torch.ones(1), process_set=chosen),
        lambda: hvd.alltoall(torch.ones(1), process_set=chosen),
        lambda: hvd.barrier(process_set=chosen),
        lambda: hvd.broadcast_object(1, process_set=chosen),
    ):
        with pytest.raises(ValueError) as error:
            call()
        text = "Process set provided does not exist, or has not been registered."
        assert text in str(error.value)
        assert str(chosen) in str(error.value)


def test_a_set_of_all_ranks_duplicates_the_global_set():
    with pytest.raises(ValueError, match=r"entry number 0 is a duplicate: ProcessSet\("):
        hvd.init(process_sets=[hvd.ProcessSet([0])])
    assert not hvd.is_initialized()
    hvd.init(process_sets=[hvd.global_process_set])
    assert hvd.is_initialized()
    hvd.init(process_sets="dynamic")
    with pytest.raises(ValueError, match="Attempted to add a duplicate process set: ProcessSet"):
        hvd.add_process_set([0])


def test_only_lists_of_sets_and_dynamic_are_accepted():
    for wrong in ("static", [[0]], [None]):
        with pytest.raises(ValueError, match='must be a list of ProcessSet or "dynamic"'):
            hvd.init(process_sets=wrong)
    assert not hvd.is_initialized()


def test_dynamic_enables_dynamic_process_sets():
    hvd.init(process_sets="Dynamic")
    assert os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] == "1"


@pytest.mark.parametrize("value", ["", "0", "no"])
def test_without_dynamic_process_sets_none_can_be_added(monkeypatch, value):
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", value)
    hvd.init()
    with pytest.raises(ValueError) as error:
        hvd.add_process_set([0])
    assert str(error.value) == (
        "Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow adding process sets after Horovod "
        "initialization."
    )
    # A second `init` may enable them.
    hvd.init(process_sets="dynamic")
    with pytest.raises(ValueError, match="duplicate"):
        hvd.add_process_set([0])


@pytest.mark.parametrize("ranks", [[1], [-1], [0, 0], []])
def test_invalid_ranks_are_refused(ranks):
    hvd.init(process_sets="dynamic")
    with pytest.raises(ValueError):
        hvd.add_process_set(ranks)
    assert torch.equal(hvd.allreduce(torch.ones(1)), torch.ones(1))


def test_the_global_set_and_unregistered_sets_cannot_be_removed():
    hvd.init(process_sets="dynamic")
    assert hvd.remove_process_set(hvd.global_process_set) is False
    assert hvd.remove_process_set(hvd.ProcessSet([0])) is False
    assert hvd.global_process_set.process_set_id == 0


def test_copies_have_the_same_ranks():
    pair = hvd.ProcessSet([2, 1])
    for again in (copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))):
        assert again(hvd.global_process_set) is hvd.global_process_set
        assert again(pair).ranks == [1, 2]
        assert again(pair).process_set_id is None
