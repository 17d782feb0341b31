"""Alltoall, reducescatter and grouped gathering between ranks: values, errors and gradients."""

import pytest
import torch

import horovod.torch as hvd

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES = INTEGERS + FLOATS
if hasattr(torch, "uint16"):
    DTYPES = [*DTYPES, torch.uint16]
ROWS = [(), (3,), (2, 2), (0,)]


def everyones(shape, dtype):
    """The tensors of all ranks, with small whole numbers so that every type is exact."""
    return [
        torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(rank)).to(dtype)
        for rank in range(hvd.size())
    ]


def mine(tensors):
    return tensors[hvd.rank()].clone()


def table(offset=0):
    """How many rows each rank sends to each, some of them none."""
    ranks = range(hvd.size())
    return [[(source + 2 * target + offset) % 4 for target in ranks] for source in ranks]


def exchanged(tensors, splits):
    """What this rank gets of everyone's rows."""
    parts = [
        torch.split(tensor[: sum(rows)], rows)[hvd.rank()] for tensor, rows in zip(tensors, splits)
    ]
    return torch.cat(parts), torch.tensor([len(part) for part in parts], dtype=torch.int32)


def share(tensor):
    """This rank's rows of a tensor that is dealt out."""
    rows, longer = divmod(len(tensor), hvd.size())
    lengths = [rows + (rank < longer) for rank in range(hvd.size())]
    return torch.split(tensor, lengths)[hvd.rank()]


def total(tensors):
    return torch.stack([tensor.to(torch.float64) for tensor in tensors]).sum(0)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool], ids=str)
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_alltoall_with_splits(dtype, row):
    for offset in range(4):
        splits = table(offset)
        tensors = [
            tensor[: sum(rows)]
            for tensor, rows in zip(everyones((4 * hvd.size(), *row), dtype), splits)
        ]
        expected, numbers = exchanged(tensors, splits)
        tensor = mine(tensors)
        received, told = hvd.alltoall(tensor, splits[hvd.rank()])
        assert received.dtype == dtype
        assert torch.equal(received, expected)
        assert told.dtype == torch.int32
        assert torch.equal(told, numbers)
        assert torch.equal(tensor, tensors[hvd.rank()])
        as_tensor = torch.tensor(splits[hvd.rank()], dtype=torch.int32)
        received, told = hvd.synchronize(hvd.alltoall_async(tensor, as_tensor))
        assert torch.equal(received, expected)
        assert torch.equal(told, numbers)


def test_alltoall_without_splits_gives_one_value():
    for rows in (0, 1, 5):
        tensors = everyones((rows * hvd.size(), 2), torch.float32)
        even = [[rows] * hvd.size()] * hvd.size()
        received = hvd.alltoall(mine(tensors), name=f"even{rows}")
        assert torch.equal(received, exchanged(tensors, even)[0])
        again = hvd.synchronize(hvd.alltoall_async(mine(tensors)))
        assert torch.equal(again, received)


def test_rows_beyond_the_splits_stay_where_they_are():
    splits = table(1)
    tensors = everyones((4 * hvd.size() + 3, 2), torch.float32)
    received, numbers = hvd.alltoall(mine(tensors), splits[hvd.rank()])
    expected, told = exchanged(tensors, splits)
    assert torch.equal(received, expected)
    assert torch.equal(numbers, told)


def test_alltoall_of_large_tensors_and_of_one_pair_only():
    rows = 200_000
    tensor = torch.arange(hvd.size()).repeat_interleave(rows) + 100 * hvd.rank()
    received = hvd.alltoall(tensor)
    sources = torch.arange(hvd.size()).repeat_interleave(rows)
    assert torch.equal(received, 100 * sources + hvd.rank())
    last = hvd.size() - 1
    splits = [0] * last + [7] if hvd.rank() == 0 else [0] * hvd.size()
    received, numbers = hvd.alltoall(torch.ones(7, 2), splits)
    assert received.shape == ((7 if hvd.rank() == last else 0), 2)
    assert numbers.tolist() == [7 if hvd.rank() == last else 0] + [0] * last


def test_a_received_tensor_owns_its_memory():
    received = [hvd.alltoall(torch.full((hvd.size() * 9,), float(n))) for n in range(20)]
    shares = [hvd.reducescatter(torch.full((hvd.size() * 9,), float(n))) for n in range(20)]
    for number, (tensor, part) in enumerate(zip(received, shares)):
        assert tensor.add_(1).eq(number + 1).all()
        assert part.add_(1).eq(number + 1).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_reducescatter_gives_the_same_as_doing_it_here(dtype, row):
    for length in (0, 1, hvd.size(), 4 * hvd.size() - 1, 1003):
        tensors = everyones((length, *row), dtype)
        tensor = mine(tensors)
        part = hvd.reducescatter(tensor, op=hvd.Sum)
        assert part.dtype == dtype
        assert torch.equal(part.to(torch.float64), share(total(tensors)))
        assert torch.equal(tensor, tensors[hvd.rank()])
        again = hvd.synchronize(hvd.reducescatter_async(tensor, op=hvd.Sum))
        assert torch.equal(again, part)


def test_reducescatter_averages_unless_told_otherwise():
    tensors = everyones((4 * hvd.size() + 1, 3), torch.float32)
    expected = share(total(tensors) / hvd.size())
    assert torch.allclose(hvd.reducescatter(mine(tensors)).double(), expected)
    asynchronous = hvd.synchronize(hvd.reducescatter_async(mine(tensors)))
    assert torch.allclose(asynchronous.double(), expected)
    whole = [tensor.int() - 2 for tensor in tensors]
    expected = share((total(whole) / hvd.size()).trunc())
    assert torch.equal(hvd.reducescatter(mine(whole)).double(), expected)


def test_reducescatter_of_a_large_tensor():
    tensor = torch.arange(3_000_001.0, dtype=torch.float64) * (hvd.rank() + 1)
    factor = sum(rank + 1 for rank in range(hvd.size()))
    expected = share(torch.arange(3_000_001.0, dtype=torch.float64)) * factor
    assert torch.equal(hvd.reducescatter(tensor, op=hvd.Sum), expected)


def test_reducescatter_scales_and_compresses():
    tensors = everyones((2 * hvd.size() + 1,), torch.float32)
    expected = share(total(tensors))
    scaled = hvd.reducescatter(mine(tensors), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert torch.equal(scaled.double(), expected * 2)
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        part = hvd.reducescatter(mine(tensors), compression=compression, op=hvd.Sum)
        assert part.dtype == torch.float32
        assert torch.equal(part.double(), expected)
        (part,) = hvd.grouped_reducescatter([mine(tensors)], compression=compression, op=hvd.Sum)
        assert torch.equal(part.double(), expected)


def test_groups_of_reducescatters():
    groups = [everyones((length, 2), torch.float32) for length in (1, 4, 0, 7, 1000)]
    tensors = [mine(group) for group in groups]
    how = {"op": hvd.Sum, "prescale_factor": 2.0}
    for parts in (
        hvd.grouped_reducescatter(tensors, **how),
        hvd.synchronize(hvd.grouped_reducescatter_async(tensors, **how)),
    ):
        assert len(parts) == len(groups)
        for part, group in zip(parts, groups):
            assert torch.equal(part.double(), share(total(group)) * 2)


def test_groups_of_allgathers():
    ranks = range(hvd.size())
    groups = [
        [torch.full(((rank * factor) % 3, 2), float(rank)) for rank in ranks] for factor in range(5)
    ]
    tensors = [mine(group) for group in groups]
    results = hvd.grouped_allgather(tensors)
    assert isinstance(results, tuple)
    asynchronous = hvd.synchronize(hvd.grouped_allgather_async(tensors, name="gathers"))
    for result, again, group in zip(results, asynchronous, groups):
        assert torch.equal(result, torch.cat(group))
        assert torch.equal(again, result)


def test_groups_of_several_element_types():
    group = [torch.ones(4), torch.ones(5, dtype=torch.int64), torch.ones(3, dtype=torch.bfloat16)]
    handle = hvd.grouped_allgather_async(group, name="mixed")
    gathered = hvd.synchronize(handle)
    assert hvd.synchronize(handle) is None
    shares = hvd.grouped_reducescatter(group, name="mixed", op=hvd.Sum)
    for tensor, result, part in zip(group, gathered, shares):
        assert result.dtype == part.dtype == tensor.dtype
        assert torch.equal(result, tensor.repeat(hvd.size()))
        assert torch.equal(part, share(tensor * hvd.size()))


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


def differ(value, other):
    return value if hvd.rank() == 0 else other


MISMATCHES = {
    "Mismatched REDUCESCATTER tensor shapes": lambda name: hvd.reducescatter(
        torch.ones(differ(8, 9)), name=name
    ),
    "Mismatched prescale and/or postscale factors": lambda name: hvd.reducescatter(
        torch.ones(8), name=name, prescale_factor=differ(1.0, 2.0)
    ),
    "Mismatched ALLTOALL tensor shapes": lambda name: hvd.alltoall(
        torch.ones(hvd.size(), differ(2, 3)), name=name
    ),
    "Mismatched data types": lambda name: hvd.alltoall(
        torch.ones(hvd.size(), dtype=differ(torch.float32, torch.int64)), name=name
    ),
    "Mismatched": lambda name: hvd.grouped_allgather([torch.ones(2)] * differ(2, 3), name=name),
}


@pytest.mark.parametrize("text", MISMATCHES)
def test_a_mismatch_fails_on_every_rank_and_the_job_goes_on(text):
    for _ in range(2):
        with pytest.raises(hvd.HorovodInternalError) as error:
            MISMATCHES[text]("mismatch." + text.replace(" ", ""))
        assert text in str(error.value)
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()


def weights(tensor):
    """A weight for every row, another one on each rank."""
    return (torch.arange(float(len(tensor))) + 1 + 100 * hvd.rank())[:, None]


def test_the_gradient_of_an_alltoall_goes_back_where_the_rows_came_from():
    splits = table(2)
    tensor = torch.ones(4 * hvd.size() + 2, 2, requires_grad=True)
    received, numbers = hvd.alltoall(tensor, splits[hvd.rank()], name="back")
    assert not numbers.requires_grad
    (received * weights(received)).sum().backward()
    expected = []
    for target in range(hvd.size()):
        start = sum(splits[source][target] for source in range(hvd.rank()))
        rows = torch.arange(splits[hvd.rank()][target]) + start
        expected.append(rows + 1.0 + 100 * target)
    expected = torch.cat(expected)
    expected = torch.cat([expected, torch.zeros(len(tensor) - len(expected))])
    assert torch.equal(tensor.grad, expected[:, None].expand(-1, 2))


def test_gradients_of_gradients_flow_through_an_alltoall():
    tensor = torch.full((hvd.size(),), 3.0, requires_grad=True)
    received = hvd.alltoall(tensor**3)
    (first,) = torch.autograd.grad(received.sum(), tensor, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), tensor)
    assert torch.allclose(second, torch.full((hvd.size(),), 18.0))


@pytest.mark.parametrize(("op", "factor"), [(hvd.Sum, hvd.size), (hvd.Average, lambda: 1)])
def test_the_gradient_of_a_reducescatter_is_gathered(op, factor):
    length = 2 * hvd.size() + 1
    how = {"op": op, "prescale_factor": 0.5, "postscale_factor": 3.0}
    one = torch.ones(length, 2, requires_grad=True)
    several = [torch.ones(length, 2, requires_grad=True) for _ in range(3)]
    part = hvd.reducescatter(one, name="one", **how)
    (part * weights(part)).sum().backward()
    parts = hvd.grouped_reducescatter(several, name="several", **how)
    sum((part * weights(part)).sum() for part in parts).backward()
    expected = hvd.allgather(weights(part).expand(-1, 2)) * 1.5 * factor()
    for tensor in (one, *several):
        assert torch.allclose(tensor.grad, expected)


def test_the_gradients_of_grouped_allgathers_are_slices_of_the_average():
    tensors = [torch.ones(hvd.rank() + extra, 2, requires_grad=True) for extra in range(3)]
    results = hvd.grouped_allgather(tensors, name="slices")
    sum((result * weights(result)).sum() for result in results).backward()
    mean = 100 * (hvd.size() - 1) / 2
    for extra, tensor in enumerate(tensors):
        start = sum(rank + extra for rank in range(hvd.rank()))
        rows = torch.arange(float(len(tensor))) + start + 1 + mean
        assert torch.allclose(tensor.grad, rows[:, None].expand(-1, 2))


def test_mistakes_that_every_rank_sees_by_itself_leave_the_world_whole():
    for mistake in (
        lambda: hvd.alltoall(torch.ones(hvd.size() + 1)),
        lambda: hvd.alltoall(torch.ones(3), [1] * (hvd.size() + 1)),
        lambda: hvd.reducescatter(torch.ones(2, dtype=torch.complex64)),
        lambda: hvd.reducescatter(torch.ones(4), op=hvd.Max),
        lambda: hvd.grouped_allgather([torch.ones(2), torch.tensor(1.0)]),
    ):
        with pytest.raises((ValueError, hvd.HorovodInternalError)):
            mistake()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()
