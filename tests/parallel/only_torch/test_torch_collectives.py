"""Collectives in PyTorch only: handles, tensors in any memory layout, sparse tensors."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import horovod.torch as hvd
from horovod import _native


def test_ranks_may_submit_in_different_orders():
    for turn in range(3):
        numbers = list(range(60))
        random.Random(hvd.rank() * 100 + turn).shuffle(numbers)
        tensors = {n: torch.full((n * 50 + 1,), float(n)) for n in numbers}
        handles = {n: hvd.allreduce_async_(tensors[n], name=f"t{n}", op=hvd.Sum) for n in numbers}
        for number in numbers:
            assert hvd.synchronize(handles[number]).eq(number * hvd.size()).all()


def test_several_threads_may_submit_at_once():
    def work(thread):
        for turn in range(30):
            tensors = [torch.full((n * 700,), float(thread + 1)) for n in range(5)]
            handles = [
                hvd.allreduce_async_(tensor, name=f"{thread}.{turn}.{number}", op=hvd.Sum)
                for number, tensor in enumerate(tensors)
            ]
            for handle in handles:
                assert hvd.synchronize(handle).eq((thread + 1) * hvd.size()).all()
        return True

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [True] * 4


def test_a_handle_can_be_polled_until_it_is_ready():
    handle = hvd.allreduce_async(torch.ones(1000), op=hvd.Sum)
    while not hvd.poll(handle):
        pass
    assert hvd.synchronize(handle).eq(hvd.size()).all()


def test_a_tensor_that_is_not_contiguous_is_reduced_through_a_copy():
    tensor = torch.arange(12.0).view(3, 4).t()
    assert torch.equal(hvd.allreduce(tensor, op=hvd.Sum), tensor * hvd.size())
    with pytest.raises(ValueError, match="required to be contiguous"):
        hvd.allreduce_(tensor, op=hvd.Sum)


def test_different_operations_with_one_name_fail_on_every_rank():
    # Full names contain the operation, so this test makes names collide on purpose.
    tensor = torch.ones(3)
    handle = (
        _native.allgather(tensor, "collision")
        if hvd.rank() == 0
        else _native.broadcast(tensor, tensor, "collision", 0)
    )
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched operations"):
        _native.wait(handle)


def test_a_name_in_flight_cannot_be_used_again():
    tensor = torch.ones(3)
    if hvd.rank() == 0:
        handle = hvd.allreduce_async_(tensor, name="twice", op=hvd.Sum)
        with pytest.raises(ValueError, match="with the same name as another tensor"):
            hvd.allreduce_async_(torch.ones(3), name="twice", op=hvd.Sum)
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async_(tensor, name="twice", op=hvd.Sum)
    assert hvd.synchronize(handle).eq(hvd.size()).all()


def test_a_received_tensor_owns_its_memory():
    received = [hvd.alltoall(torch.full((hvd.size() * 9,), float(n))) for n in range(20)]
    shares = [hvd.reducescatter(torch.full((hvd.size() * 9,), float(n))) for n in range(20)]
    gathered = [hvd.allgather(torch.full((1000,), float(n))) for n in range(20)]
    for number, tensors in enumerate(zip(received, shares, gathered)):
        for tensor in tensors:
            assert tensor.add_(1).eq(number + 1).all()


def test_handles_can_be_polled_and_may_be_waited_for_in_any_order():
    tensor = torch.ones(hvd.size())
    handles = [
        hvd.alltoall_async(tensor, name="a"),
        hvd.reducescatter_async(tensor, name="b", op=hvd.Sum),
        hvd.grouped_allgather_async([tensor, tensor], name="c"),
        hvd.grouped_reducescatter_async([tensor, tensor], name="d", op=hvd.Sum),
    ]
    for handle in reversed(handles):
        while not hvd.poll(handle):
            pass
    results = [hvd.synchronize(handle) for handle in reversed(handles)]
    assert [part.item() for part in results[0]] == [hvd.size()] * 2
    assert len(results[1][0]) == hvd.size() ** 2
    assert results[2].item() == hvd.size()
    assert torch.equal(results[3], tensor)
    # A handle that has been waited for is released.
    assert hvd.synchronize(handles[2]) is None
    assert isinstance(hvd.grouped_allgather([tensor]), tuple)


def test_received_splits_have_no_gradient():
    tensor = torch.ones(hvd.size(), requires_grad=True)
    received, numbers = hvd.alltoall(tensor, [1] * hvd.size())
    assert received.requires_grad and not numbers.requires_grad


def test_sparse_tensors_are_reduced():
    indices = torch.tensor([[0, hvd.rank()]])
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, hvd.size())):
        for dtype in (torch.float32, torch.int64):
            values = torch.full((2, 2), 6, dtype=dtype)
            tensor = torch.sparse_coo_tensor(
                indices, values, (hvd.size() + 1, 2), check_invariants=True
            )
            wait = hvd.sparse_allreduce_async(tensor, "sparse", op)
            result = wait()
            assert result.is_sparse
            assert wait() is result
            # Rank 0 has its row twice.
            rows = [6 * (hvd.size() + 1)] + [6] * (hvd.size() - 1) + [0]
            expected = torch.tensor(rows, dtype=dtype)[:, None].expand(-1, 2)
            expected = expected.div(
                divisor, rounding_mode="trunc" if dtype == torch.int64 else None
            )
            assert torch.equal(result.to_dense(), expected)
