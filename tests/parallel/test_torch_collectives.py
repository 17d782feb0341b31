"""The collectives between ranks: values, names, errors and gradients."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import horovod.torch as hvd
from horovod import _native

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES = INTEGERS + FLOATS
if hasattr(torch, "uint16"):
    DTYPES = [*DTYPES, torch.uint16]
SHAPES = [(), (1,), (17,), (0,), (3, 5), (2, 3, 4), (100_003,)]


def everyones(shape, dtype):
    """The tensors of all ranks, with small whole numbers so that every type is exact."""
    return [
        torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(rank)).to(dtype)
        for rank in range(hvd.size())
    ]


def mine(tensors):
    return tensors[hvd.rank()].clone()


def stacked(tensors):
    return torch.stack([tensor.to(torch.float64) for tensor in tensors])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reductions_give_the_same_as_doing_it_here(dtype, shape):
    tensors = everyones(shape, dtype)
    together = stacked(tensors)
    expected = {
        hvd.Sum: together.sum(0),
        hvd.Min: together.amin(0),
        hvd.Max: together.amax(0),
        hvd.Product: together.prod(0),
    }
    for op, result in expected.items():
        tensor = mine(tensors)
        reduced = hvd.allreduce(tensor, op=op)
        assert reduced.dtype == dtype
        assert reduced.shape == shape
        assert torch.equal(reduced.to(torch.float64), result)
        assert torch.equal(tensor, tensors[hvd.rank()])
        assert hvd.allreduce_(tensor, op=op) is tensor
        assert torch.equal(tensor, reduced)


def test_booleans_are_joined_by_or_and_by_and():
    tensors = [tensor > 1 for tensor in everyones((1000,), torch.int64)]
    together = torch.stack(tensors)
    for op in (hvd.Sum, hvd.Max):
        assert torch.equal(hvd.allreduce(mine(tensors), op=op), together.any(0))
    for op in (hvd.Product, hvd.Min):
        assert torch.equal(hvd.allreduce(mine(tensors), op=op), together.all(0))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_an_average_of_floats(dtype):
    tensors = everyones((1000,), dtype)
    mean = hvd.allreduce(mine(tensors)).to(torch.float64)
    # Only a power of two has a factor that no element type rounds.
    exact = hvd.size() & (hvd.size() - 1) == 0
    tolerance = 0.0 if exact else torch.finfo(dtype).eps
    assert torch.allclose(mean, stacked(tensors).mean(0), rtol=tolerance, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64], ids=str)
def test_an_average_of_integers_truncates_towards_zero(dtype):
    tensors = [tensor - 2 for tensor in everyones((1000,), dtype)]
    assert torch.equal(hvd.allreduce(mine(tensors)), stacked(tensors).mean(0).trunc().to(dtype))


def test_scale_factors_apply_before_and_behind_the_sum():
    tensors = everyones((100,), torch.float32)
    reduced = hvd.allreduce(mine(tensors), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert torch.equal(reduced.double(), stacked(tensors).sum(0) * 2)


def test_the_result_has_the_same_bits_on_every_rank_and_every_time():
    for length in (10, 5_000, 300_001):
        tensor = torch.randn(length, generator=torch.Generator().manual_seed(hvd.rank()))
        first = hvd.allreduce(tensor, op=hvd.Sum)
        again = hvd.allreduce(tensor, op=hvd.Sum)
        of_rank_zero = hvd.broadcast(first, 0)
        assert torch.equal(first.view(torch.int32), again.view(torch.int32))
        assert torch.equal(first.view(torch.int32), of_rank_zero.view(torch.int32))


def test_a_large_tensor():
    tensor = torch.full((5_000_000,), float(hvd.rank() + 1))
    hvd.allreduce_(tensor, op=hvd.Sum)
    total = hvd.size() * (hvd.size() + 1) / 2
    assert tensor.eq(total).all()


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


def test_names_may_come_again_with_another_shape():
    for length in (3, 3, 5, 5, 3):
        reduced = hvd.allreduce(torch.ones(length), name="again", op=hvd.Sum)
        assert torch.equal(reduced, torch.full((length,), float(hvd.size())))


@pytest.mark.parametrize("form", ["plain", "async", "in place", "async in place"])
def test_groups(form):
    tensors = [torch.full((n + 1,), float(n + hvd.rank())) for n in range(20)]
    ranks = range(hvd.size())
    expected = [torch.full((n + 1,), float(sum(n + rank for rank in ranks))) for n in range(20)]
    results = {
        "plain": lambda: hvd.grouped_allreduce(tensors, op=hvd.Sum),
        "async": lambda: hvd.synchronize(hvd.grouped_allreduce_async(tensors, op=hvd.Sum)),
        "in place": lambda: hvd.grouped_allreduce_(tensors, op=hvd.Sum),
        "async in place": lambda: hvd.synchronize(
            hvd.grouped_allreduce_async_(tensors, op=hvd.Sum)
        ),
    }[form]()
    assert all(torch.equal(result, right) for result, right in zip(results, expected))
    assert all((a is b) == ("in place" in form) for a, b in zip(results, tensors))


def test_a_group_of_several_element_types():
    group = [torch.ones(2), torch.ones(3, dtype=torch.int64), torch.ones(4, dtype=torch.bfloat16)]
    results = hvd.grouped_allreduce(group, name="mixed", op=hvd.Sum)
    assert [result.dtype for result in results] == [tensor.dtype for tensor in group]
    assert all(result.eq(hvd.size()).all() for result in results)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool], ids=str)
@pytest.mark.parametrize("row", [(), (3,), (2, 2)], ids=str)
def test_gathering_rows_of_different_numbers(dtype, row):
    for offset in range(hvd.size()):
        lengths = [(rank + offset) % hvd.size() * 3 for rank in range(hvd.size())]
        tensors = [
            torch.full((length, *row), rank % 2 + 1).to(dtype)
            for rank, length in enumerate(lengths)
        ]
        gathered = hvd.allgather(mine(tensors))
        assert gathered.dtype == dtype
        assert torch.equal(gathered, torch.cat(tensors))
        assert torch.equal(hvd.synchronize(hvd.allgather_async(mine(tensors))), gathered)


def test_gathering_nothing():
    gathered = hvd.allgather(torch.ones((0, 3), dtype=torch.bfloat16))
    assert gathered.shape == (0, 3)
    assert gathered.dtype == torch.bfloat16


def test_a_gathered_tensor_owns_its_memory():
    gathered = [hvd.allgather(torch.full((1000,), float(n + hvd.rank()))) for n in range(20)]
    for number, tensor in enumerate(gathered):
        assert tensor.add_(1)[0] == number + 1


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool], ids=str)
def test_broadcast_from_every_root(dtype):
    tensors = everyones((7, 3), dtype)
    for root in range(hvd.size()):
        expected = tensors[root]
        tensor = mine(tensors)
        assert torch.equal(hvd.broadcast(tensor, root), expected)
        assert torch.equal(hvd.synchronize(hvd.broadcast_async(tensor, root)), expected)
        assert torch.equal(tensor, tensors[hvd.rank()])
        assert hvd.broadcast_(tensor, root) is tensor
        assert torch.equal(tensor, expected)
        tensor = mine(tensors)
        assert hvd.synchronize(hvd.broadcast_async_(tensor, root)) is tensor
        assert torch.equal(tensor, expected)


def test_broadcast_of_a_large_tensor_and_of_a_scalar():
    tensor = torch.full((3_000_000,), float(hvd.rank()))
    assert hvd.broadcast(tensor, hvd.size() - 1).eq(hvd.size() - 1).all()
    assert hvd.broadcast(torch.tensor(hvd.rank()), 1) == 1


def test_nobody_leaves_a_barrier_before_all_have_come(tmp_path):
    folder = hvd.broadcast_object(tmp_path, 0)
    for turn in range(5):
        (folder / f"{turn}-{hvd.rank()}").touch()
        hvd.barrier()
        assert len(list(folder.glob(f"{turn}-*"))) == hvd.size()


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_compressed_reductions(name):
    compression = getattr(hvd.Compression, name)
    tensors = everyones((1000,), torch.float32)
    reduced = hvd.allreduce(mine(tensors), compression=compression, op=hvd.Sum)
    assert reduced.dtype == torch.float32
    assert torch.equal(reduced.double(), stacked(tensors).sum(0))
    (grouped,) = hvd.grouped_allreduce([mine(tensors)], compression=compression, op=hvd.Sum)
    assert torch.equal(grouped, reduced)


def test_a_tensor_that_is_not_contiguous_is_reduced_by_a_copy():
    tensor = torch.arange(12.0).view(3, 4).t()
    assert torch.equal(hvd.allreduce(tensor, op=hvd.Sum), tensor * hvd.size())


def differ(value, other):
    return value if hvd.rank() == 0 else other


MISMATCHES = {
    "Mismatched ALLREDUCE tensor shapes": lambda name: hvd.allreduce(
        torch.ones(differ(3, 4)), name=name
    ),
    "Mismatched data types: One rank had type float": lambda name: hvd.allreduce(
        torch.ones(3, dtype=differ(torch.float32, torch.float64)), name=name
    ),
    "Mismatched reduction operation": lambda name: hvd.allreduce(
        torch.ones(3), name=name, op=differ(hvd.Sum, hvd.Max)
    ),
    "Mismatched prescale and/or postscale factors": lambda name: hvd.allreduce(
        torch.ones(3), name=name, prescale_factor=differ(1.0, 2.0)
    ),
    "Mismatched BROADCAST root ranks": lambda name: hvd.broadcast(
        torch.ones(3), differ(0, 1), name=name
    ),
    "Mismatched BROADCAST tensor shapes": lambda name: hvd.broadcast(
        torch.ones(differ((2, 3), (3, 2))), 0, name=name
    ),
    "Mismatched ALLGATHER tensor shapes": lambda name: hvd.allgather(
        torch.ones(differ((2, 3), (2, 4))), name=name
    ),
}


@pytest.mark.parametrize("text", MISMATCHES)
def test_a_mismatch_fails_on_every_rank_and_the_job_goes_on(text):
    for _ in range(2):
        with pytest.raises(hvd.HorovodInternalError) as error:
            MISMATCHES[text]("mismatch." + text.replace(" ", ""))
        assert text in str(error.value)
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()


def test_a_group_that_differs_fails_on_every_rank():
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched"):
        hvd.grouped_allreduce([torch.ones(2)] * differ(2, 3), name="group")
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()


def test_operations_that_differ_under_one_name_fail_on_every_rank():
    # Our names carry the operation, so this needs names that collide on purpose.
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


def test_mistakes_that_every_rank_sees_by_itself_leave_the_world_whole():
    for mistake in (
        lambda: hvd.allreduce(torch.ones(2, dtype=torch.complex64)),
        lambda: hvd.allgather(torch.tensor(1.0)),
        lambda: hvd.broadcast(torch.ones(2), hvd.size()),
        lambda: hvd.allreduce_(torch.ones(2, 3).t()),
    ):
        with pytest.raises((ValueError, hvd.HorovodInternalError)):
            mistake()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()


def weight():
    return torch.arange(1.0, 4.0) * (hvd.rank() + 1)


def test_the_gradient_of_an_allreduce_is_reduced_the_same_way():
    total = sum(rank + 1 for rank in range(hvd.size()))
    for op, factor in ((hvd.Sum, 1.0), (hvd.Average, 1 / hvd.size())):
        tensor = torch.ones(3, requires_grad=True)
        (hvd.allreduce(tensor, op=op, prescale_factor=2.0) * weight()).sum().backward()
        assert torch.allclose(tensor.grad, torch.arange(1.0, 4.0) * total * factor * 2)


def test_the_gradient_of_a_group_is_a_group():
    total = sum(rank + 1 for rank in range(hvd.size()))
    tensors = [torch.ones(3, requires_grad=True) for _ in range(4)]
    results = hvd.grouped_allreduce(tensors, name="grad", op=hvd.Sum)
    sum((result * weight()).sum() for result in results).backward()
    for tensor in tensors:
        assert torch.allclose(tensor.grad, torch.arange(1.0, 4.0) * total)


def test_the_gradient_of_an_allgather_is_this_ranks_slice_of_the_average():
    tensor = torch.ones(hvd.rank() + 1, 2, requires_grad=True)
    gathered = hvd.allgather(tensor)
    rows = torch.arange(float(gathered.shape[0]))
    (gathered * rows[:, None] * (hvd.rank() + 1)).sum().backward()
    mean = sum(rank + 1 for rank in range(hvd.size())) / hvd.size()
    start = sum(range(1, hvd.rank() + 1))
    expected = rows[start : start + hvd.rank() + 1, None].expand(-1, 2) * mean
    assert torch.allclose(tensor.grad, expected)


def test_the_gradient_of_a_broadcast_lies_on_the_root():
    tensor = torch.ones(3, requires_grad=True)
    (hvd.broadcast(tensor, 1) * weight()).sum().backward()
    mean = sum(rank + 1 for rank in range(hvd.size())) / hvd.size()
    expected = torch.arange(1.0, 4.0) * mean if hvd.rank() == 1 else torch.zeros(3)
    assert torch.allclose(tensor.grad, expected)


def test_gradients_of_gradients_flow_too():
    tensor = torch.full((2,), 3.0, requires_grad=True)
    reduced = hvd.allreduce(tensor**3, op=hvd.Sum)
    (first,) = torch.autograd.grad(reduced.sum(), tensor, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), tensor)
    assert torch.allclose(second, torch.full((2,), 18.0 * hvd.size()))
