"""The `ronde` backend of torch.distributed: every collective, groups, and operations in flight."""

import os

import pytest
import torch
import torch.distributed as dist
from frameworks.torch import DEVICE
from groups import new_group

import horovod.torch as hvd

pytestmark = pytest.mark.usefixtures("process_group")


def of(rank, shape=(2, 3), dtype=torch.float32):
    """What a rank contributes: small integers, so that every type is exact."""
    numbers = torch.arange(torch.Size(shape).numel()) % 3 + rank + 1
    return numbers.reshape(shape).to(dtype)


def mine(shape=(2, 3), dtype=torch.float32):
    return of(hvd.rank(), shape, dtype)


def everyones(shape=(2, 3), dtype=torch.float32):
    return [of(rank, shape, dtype) for rank in range(hvd.size())]


def test_the_default_group_is_the_job():
    assert dist.get_backend() == "ronde"
    assert (dist.get_rank(), dist.get_world_size()) == (hvd.rank(), hvd.size())
    assert (dist.get_rank(), dist.get_world_size()) == (
        int(os.environ["RANK"]),
        int(os.environ["WORLD_SIZE"]),
    )


REDUCTIONS = {
    "SUM": lambda stack: stack.sum(0),
    "PRODUCT": lambda stack: stack.prod(0),
    "MIN": lambda stack: stack.amin(0),
    "MAX": lambda stack: stack.amax(0),
}


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8], ids=str
)
def test_all_reduce(op, dtype):
    expected = REDUCTIONS[op](torch.stack(everyones()).double()).to(dtype)
    tensor = mine(dtype=dtype)
    assert dist.all_reduce(tensor, getattr(dist.ReduceOp, op)) is None
    assert torch.equal(tensor, expected)
    work = dist.all_reduce(again := mine(dtype=dtype), getattr(dist.ReduceOp, op), async_op=True)
    assert work.wait() and work.is_completed() and work.is_success()
    assert torch.equal(again, expected)


def test_all_reduce_averages():
    tensor = mine()
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    torch.testing.assert_close(tensor, torch.stack(everyones()).mean(0))


@pytest.mark.parametrize("op", ["BAND", "BOR", "BXOR"])
def test_all_reduce_of_bits(op):
    combine = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[op]
    expected, *rest = everyones(dtype=torch.int32)
    for each in rest:
        expected = combine(expected, each)
    tensor = mine(dtype=torch.int32)
    dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
    assert torch.equal(tensor, expected)


def test_tensors_that_are_not_contiguous():
    whole = mine((4, 6)).clone()
    part = whole[:, ::2]
    dist.all_reduce(part)
    assert torch.equal(part, torch.stack(everyones((4, 6))).sum(0)[:, ::2])
    assert torch.equal(whole[:, 1], mine((4, 6))[:, 1])
    transposed = mine((2, 3)).t()
    dist.broadcast(transposed, 0)
    assert torch.equal(transposed, of(0).t())
    gathered = [torch.empty(3, 2).t() for _ in range(hvd.size())]
    dist.all_gather(gathered, mine((3, 2)).t().contiguous().t().t())
    assert all(torch.equal(got, each.t()) for got, each in zip(gathered, everyones((3, 2))))


def test_coalesced_reductions():
    tensors = [mine((4,)), mine((2, 2)), mine((3,), torch.float64)]
    with dist.distributed_c10d._coalescing_manager():
        for tensor in tensors[:2]:
            dist.all_reduce(tensor)
    with dist.distributed_c10d._coalescing_manager(device=torch.device(DEVICE)) as works:
        work = dist.group.WORLD.allreduce([tensors[2]])
    assert work.is_completed()
    assert works is not None
    for tensor in tensors:
        expected = torch.stack(everyones(tensor.shape, tensor.dtype)).sum(0)
        assert torch.equal(tensor, expected)


def test_reduce_changes_the_roots_tensor_only():
    for root in range(hvd.size()):
        tensor = mine()
        dist.reduce(tensor, root)
        expected = torch.stack(everyones()).sum(0) if root == hvd.rank() else mine()
        assert torch.equal(tensor, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64], ids=str)
def test_broadcast(dtype):
    for root in range(hvd.size()):
        tensor = mine(dtype=dtype)
        dist.broadcast(tensor, root)
        assert torch.equal(tensor, of(root, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64], ids=str)
def test_all_gather(dtype):
    tensors = [torch.empty((2, 3), dtype=dtype) for _ in range(hvd.size())]
    dist.all_gather(tensors, mine(dtype=dtype))
    assert all(map(torch.equal, tensors, everyones(dtype=dtype)))
    whole = torch.empty((2 * hvd.size(), 3), dtype=dtype)
    dist.all_gather_into_tensor(whole, mine(dtype=dtype))
    assert torch.equal(whole, torch.cat(everyones(dtype=dtype)))
    stacked = torch.empty((hvd.size(), 2, 3), dtype=dtype)
    dist.all_gather_into_tensor(stacked, mine(dtype=dtype), async_op=True).wait()
    assert torch.equal(stacked, torch.stack(everyones(dtype=dtype)))


def test_all_gather_of_different_sizes():
    tensors = [torch.empty(rank + 1) for rank in range(hvd.size())]
    dist.all_gather(tensors, torch.full((hvd.rank() + 1,), float(hvd.rank())))
    for rank, tensor in enumerate(tensors):
        assert torch.equal(tensor, torch.full((rank + 1,), float(rank)))


def test_all_gather_into_tensors_of_the_wrong_size_is_rejected():
    with pytest.raises(ValueError, match=r"rank 0 of the group sent 6 elements.* has 5"):
        dist.all_gather([torch.empty(5) for _ in range(hvd.size())], mine())
    with pytest.raises(ValueError, match="elements"):
        dist.all_gather_into_tensor(torch.empty(5), mine())


@pytest.mark.parametrize("op", ["SUM", "AVG", "MAX"])
def test_reduce_scatter(op):
    def reduced(tensors):
        stack = torch.stack(tensors)
        return {"SUM": stack.sum(0), "AVG": stack.mean(0), "MAX": stack.amax(0)}[op]

    how = getattr(dist.ReduceOp, op)
    shape = (2 * hvd.size(), 3)
    expected = reduced(everyones(shape)).chunk(hvd.size())[hvd.rank()]
    share = torch.empty(2, 3)
    dist.reduce_scatter_tensor(share, mine(shape), how)
    torch.testing.assert_close(share, expected)
    share = torch.empty(2, 3)
    dist.reduce_scatter(share, list(mine(shape).chunk(hvd.size())), how, async_op=True).wait()
    torch.testing.assert_close(share, expected)


def test_gather_and_scatter():
    for root in range(hvd.size()):
        tensors = [torch.empty(2, 3) for _ in range(hvd.size())] if root == hvd.rank() else None
        dist.gather(mine(), tensors, root)
        if tensors is not None:
            assert all(map(torch.equal, tensors, everyones()))
        tensor = torch.empty(2, 3)
        dist.scatter(tensor, everyones() if root == hvd.rank() else None, root)
        assert torch.equal(tensor, mine())


def test_all_to_all():
    size, rank = hvd.size(), hvd.rank()

    def rows_from(source, target, rows):
        return torch.full((rows, 2), float(10 * source + target))

    received = [torch.empty(source + 1, 2) for source in range(size)]
    dist.all_to_all(received, [rows_from(rank, target, rank + 1) for target in range(size)])
    expected = [rows_from(source, rank, source + 1) for source in range(size)]
    assert all(map(torch.equal, received, expected))
    rows = [source + 1 for source in range(size)]
    whole = torch.empty(sum(rows), 2)
    sent = torch.cat([rows_from(rank, target, rank + 1) for target in range(size)])
    dist.all_to_all_single(whole, sent, rows, [rank + 1] * size)
    assert torch.equal(whole, torch.cat(expected))
    even = torch.empty(size, 2)
    dist.all_to_all_single(even, torch.cat([rows_from(rank, target, 1) for target in range(size)]))
    assert torch.equal(even, torch.cat([rows_from(source, rank, 1) for source in range(size)]))


def test_objects():
    objects = [None] * hvd.size()
    dist.all_gather_object(objects, {"rank": hvd.rank()})
    assert objects == [{"rank": rank} for rank in range(hvd.size())]
    some = [hvd.rank(), "x" * hvd.rank()]
    dist.broadcast_object_list(some, 1)
    assert some == [1, "x"]


def test_works_have_futures():
    works = [dist.all_reduce(mine((100 + each,)), async_op=True) for each in range(10)]
    chained = [work.get_future().then(lambda future: future.value()[0] * 2) for work in works]
    for each, future in enumerate(chained):
        assert torch.equal(future.wait(), 2 * torch.stack(everyones((100 + each,))).sum(0))
    assert all(work.is_completed() for work in works)
    assert torch.equal(works[3].result()[0], torch.stack(everyones((103,))).sum(0))


def test_many_in_flight_are_waited_for_in_any_order():
    tensors = [mine((each + 1,)) for each in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    for tensor in tensors:
        assert torch.equal(tensor, torch.stack(everyones(tensor.shape)).sum(0))


def test_a_mismatch_is_an_error_of_the_work_and_of_its_future():
    tensor = torch.ones(3 + hvd.rank())
    with pytest.raises(hvd.HorovodInternalError, match="shape"):
        dist.all_reduce(tensor)
    work = dist.all_reduce(torch.ones(3 + hvd.rank()), async_op=True)
    with pytest.raises(RuntimeError, match="shape"):
        work.get_future().wait()
    assert work.is_completed() and not work.is_success()
    dist.barrier()


def test_groups():
    everyone = list(range(hvd.size()))
    pairs = [everyone[first : first + 2] for first in range(0, hvd.size(), 2)]
    groups = [new_group(ranks) for ranks in pairs]
    own = groups[hvd.rank() // 2]
    ranks = pairs[hvd.rank() // 2]
    assert dist.get_process_group_ranks(own) == ranks
    assert dist.get_world_size(own) == len(ranks)
    tensor = mine()
    dist.all_reduce(tensor, group=own)
    assert torch.equal(tensor, torch.stack([of(rank) for rank in ranks]).sum(0))
    tensor = mine()
    dist.broadcast(tensor, ranks[-1], group=own)
    assert torch.equal(tensor, of(ranks[-1]))
    objects = [None] * len(ranks)
    dist.all_gather_object(objects, hvd.rank(), group=own)
    assert objects == ranks
    dist.barrier(own)
    for ranks, group in zip(pairs, groups):
        if hvd.rank() not in ranks:
            assert group == dist.GroupMember.NON_GROUP_MEMBER


def test_two_groups_of_the_same_ranks_do_not_mix_their_tensors():
    ranks = list(range(hvd.size()))
    first, second = new_group(ranks), new_group(ranks)
    one, two = mine((5,)), mine((7,))
    order = [(one, first), (two, second)]
    if hvd.rank() % 2:
        order.reverse()
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in order]
    for work in works:
        work.wait()
    assert torch.equal(one, torch.stack(everyones((5,))).sum(0))
    assert torch.equal(two, torch.stack(everyones((7,))).sum(0))
    dist.destroy_process_group(first)


def test_a_gloo_group_beside_ours():
    group = dist.new_group(backend="gloo")
    tensor = mine()
    dist.all_reduce(tensor, group=group)
    assert torch.equal(tensor, torch.stack(everyones()).sum(0))
    assert dist.get_backend(group) == "gloo"
    group = dist.new_group([1], backend="gloo")
    assert (group == dist.GroupMember.NON_GROUP_MEMBER) == (hvd.rank() != 1)


def test_send_and_receive_between_two():
    group = new_group([0, 1])
    if hvd.rank() > 1:
        return
    other = 1 - hvd.rank()
    for _ in range(3):
        if hvd.rank() == 0:
            dist.send(of(7), other, group=group, tag=3)
        else:
            tensor = torch.empty(2, 3)
            dist.recv(tensor, other, group=group, tag=3)
            assert torch.equal(tensor, of(7))
    received = torch.empty(2, 3)
    works = [
        dist.isend(mine(), other, group=group),
        dist.irecv(received, other, group=group),
    ]
    for work in works:
        work.wait()
    assert torch.equal(received, of(other))


def test_send_in_a_larger_group_raises_an_error_with_advice():
    if hvd.size() == 2:
        pytest.skip("the world is a group of two")
    with pytest.raises(NotImplementedError, match="groups of two"):
        dist.send(mine(), (hvd.rank() + 1) % hvd.size())


def test_a_group_that_only_its_members_create_is_rejected():
    if hvd.size() == 2:
        pytest.skip("every pair is the world")
    members = [1, 2]
    if hvd.rank() in members:
        with pytest.raises(ValueError, match="not a process set yet"):
            dist.new_group(members, use_local_synchronization=True)
    dist.barrier()
