"""Child processes of ranks: they know their parent's rank and size, but cannot communicate."""

import multiprocessing
import os
from functools import partial

import children
import pytest
import torch
from torch.utils.data import DataLoader

import horovod.torch as hvd


@pytest.fixture
def some(monkeypatch, leave):
    """A process set without the last rank."""
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    leave()
    hvd.init()
    yield hvd.add_process_set(range(hvd.size() - 1))
    leave()
    hvd.init()


def check_worker(method, process_set):
    loader = DataLoader(
        children.Places(process_set),
        num_workers=1,
        multiprocessing_context=method,
        batch_size=None,
        collate_fn=children.as_it_is,
        # It runs in the worker before the first sample.
        worker_init_fn=children.answers,
    )
    here = children.answers()
    assert here == (True, *(getattr(hvd, name)() for name in children.NUMBERS))
    samples = list(loader)
    assert len(samples) == 2
    for place, on_arrival, members, world, _ in samples:
        assert place == here and on_arrival in (None, here)
        assert members == (hvd.size() - 1, hvd.rank() < hvd.size() - 1)
        assert world == (hvd.size(), hvd.rank())
    check_refusals(samples[0][-1])


def check_refusals(errors):
    assert {kind for kind, _ in errors} == {"RuntimeError"}
    whose = f"is a child of rank {hvd.rank()} (pid {os.getpid()}) and not a rank"
    assert all(whose in text for _, text in errors)
    assert sum("Communicate in the rank" in text for _, text in errors) == len(errors) - 1
    assert sum("__main__" in text for _, text in errors) == 1


def test_forked_workers_of_a_loader(some):
    # An operation in flight here does not belong to the worker.
    handle = hvd.allreduce_async(torch.ones(1), name="in flight") if hvd.rank() == 0 else None
    check_worker("fork", some)
    if handle is None:
        handle = hvd.allreduce_async(torch.ones(1), name="in flight")
    assert hvd.synchronize(handle).item() == 1.0


def test_workers_with_their_own_interpreters(some):
    # One rank tests each method: all of them would take long on few processors.
    if hvd.rank() < 2:
        check_worker(("spawn", "forkserver")[hvd.rank()], some)
    hvd.barrier()


def test_pools():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(children.answers, range(4)) == [children.answers()] * 4
        check_refusals(pool.map(children.refusals, [0])[0])
    # A fork server that was started in an earlier world must not report that one.
    if hvd.rank() == 0:
        with multiprocessing.get_context("forkserver").Pool(1) as pool:
            assert pool.map(children.answers, [0]) == [children.answers()]
    assert hvd.allreduce(torch.ones(1)).item() == 1.0


def test_a_forked_child_cannot_use_the_handles_of_its_parent():
    handle = hvd.allreduce_async(torch.ones(1), name="of the parent")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        calls = (partial(hvd.poll, handle), partial(hvd.synchronize, handle))
        os.write(writer, repr([children.exception_of(call)[0] for call in calls]).encode())
        os._exit(7)
    os.close(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with os.fdopen(reader) as errors:
        assert errors.read() == repr(["RuntimeError", "RuntimeError"])
    assert hvd.synchronize(handle).item() == 1.0
