"""The world: ranks and sizes, the barrier, sending objects, and consecutive worlds."""

import os

import numpy as np
import pytest
from world import rank, ranks, size


def test_ranks_and_sizes_agree_with_the_launcher(framework):
    hvd = framework.hvd
    assert hvd.is_initialized()
    assert hvd.rank() == int(os.environ["HOROVOD_RANK"])
    assert hvd.size() == int(os.environ["HOROVOD_SIZE"])
    assert (hvd.local_rank(), hvd.local_size()) == (hvd.rank(), hvd.size())
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.global_process_set.ranks == list(ranks())
    assert hvd.global_process_set.rank() == hvd.rank()


@pytest.mark.needs("barrier")
def test_no_rank_leaves_a_barrier_before_all_have_entered(framework, tmp_path):
    letters = np.zeros(500, "uint8")
    path = str(tmp_path).encode()
    letters[: len(path)] = list(path)
    sent = framework.one("broadcast", framework.tensor(letters, "uint8"), 0)
    folder = bytes(framework.values(sent)).rstrip(b"\0").decode()
    for turn in range(5):
        with open(f"{folder}/{turn}-{rank()}", "w"):
            pass
        framework.run(lambda: framework.hvd.barrier())
        entered = [name for name in os.listdir(folder) if name.startswith(f"{turn}-")]
        assert len(entered) == size()
    framework.run(lambda: framework.hvd.barrier())


@pytest.mark.needs("objects")
def test_objects_from_every_root(framework):
    for root in ranks():
        value = {"root": root, "call": lambda x: x + 1} if rank() == root else None
        received = framework.hvd.broadcast_object(value, root)
        assert received["root"] == root
        assert received["call"](1) == 2


@pytest.mark.needs("objects")
def test_large_and_small_objects(framework):
    data = bytes(range(256)) * 20_000
    assert framework.hvd.broadcast_object(data if rank() == 0 else None, name="data") == data
    objects = framework.hvd.allgather_object("x" * rank() * 1000)
    assert [len(text) for text in objects] == [each * 1000 for each in ranks()]


@pytest.mark.needs("objects")
def test_objects_among_members(framework):
    chosen = framework.hvd.add_process_set(range(1, size()))
    if chosen.included():
        last = size() - 1
        sent = framework.hvd.broadcast_object({"from": rank()}, last, process_set=chosen)
        assert sent == {"from": last}
    framework.hvd.remove_process_set(chosen)


def test_ranks_form_a_new_world_and_agree_on_unnamed_tensors(framework, leave):
    for _ in range(2):
        # Ranks have submitted different numbers of unnamed tensors when they leave.
        alone = framework.hvd.add_process_set([0])
        if rank() == 0:
            framework.one("allreduce", framework.tensor([1.0]), process_set=alone)
        leave()
        assert not framework.hvd.is_initialized()
        framework.hvd.init()
        total = framework.one("allreduce", framework.tensor([1.0]), op=framework.hvd.Sum)
        assert framework.values(total).tolist() == [size()]


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "broadcast", "alltoall"])
def test_calls_between_worlds_raise_an_error(framework, leave, kind):
    tensor = framework.tensor(np.ones(size()))
    number = size()
    leave()
    try:
        with pytest.raises(Exception, match=r"Horovod has not been initialized; use hvd\.init\(\)"):
            framework.one(kind, tensor, *([0] if kind == "broadcast" else []))
    finally:
        framework.hvd.init()
    total = framework.one("allreduce", framework.tensor([1.0]), op=framework.hvd.Sum)
    assert framework.values(total).tolist() == [number]
