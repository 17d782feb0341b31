"""The `ronde` backend of torch.distributed in a world of one, and what it refuses."""

import pytest
import torch
import torch.distributed as dist

import horovod.torch as hvd


@pytest.fixture
def group():
    dist.init_process_group("ronde", rank=0, world_size=1, store=dist.HashStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_joining_a_group_joins_the_world(group):
    assert hvd.is_initialized()
    assert dist.get_backend() == "ronde"
    assert group.name() == "ronde"
    tensor = torch.tensor([1.0, 2.0])
    dist.all_reduce(tensor)
    assert tensor.tolist() == [1.0, 2.0]


def test_a_work_object_has_a_result_and_a_future(group):
    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert work.get_future().wait()[0].tolist() == [1.0, 1.0]
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert work.result()[0].tolist() == [1.0, 1.0]


def test_unsupported_calls_fail_before_anything_is_sent(group):
    with pytest.raises(ValueError, match="dense tensors only"):
        dist.all_reduce(torch.eye(2).to_sparse())
    with pytest.raises(NotImplementedError, match="groups of two"):
        group.send([torch.ones(1)], 0, 0)
    with pytest.raises(ValueError, match="3 elements"):
        dist.all_gather_into_tensor(torch.empty(3), torch.ones(2))


def test_a_group_that_differs_from_the_jobs_world_is_refused():
    with pytest.raises(RuntimeError, match="start the job with `horovodrun -np 2`"):
        dist.init_process_group("ronde", rank=1, world_size=2, store=dist.HashStore())
    assert not dist.is_initialized()


def test_registering_twice_changes_nothing():
    from horovod.torch.distributed import register

    register()
    assert dist.Backend.RONDE == "ronde"
