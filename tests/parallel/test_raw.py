"""The raw binding between ranks: NumPy arrays and torch tensors through every collective."""

import numpy
import pytest
import torch

import horovod.raw as hvd

DTYPES = ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"]
SHAPES = [(), (1,), (17,), (0,), (3, 5), (100_003,)]


def to_numpy(values, dtype):
    return numpy.array(values).astype(dtype)


def to_torch(values, dtype):
    if not hasattr(torch, dtype):
        pytest.skip(f"this PyTorch has no {dtype}")
    return torch.as_tensor(values).to(getattr(torch, dtype))


KINDS = {"numpy": to_numpy, "torch": to_torch}


@pytest.fixture(params=KINDS)
def make(request):
    return KINDS[request.param]


def everyones(shape, seed=0):
    """Small whole numbers for all ranks, so that every type is exact."""
    return [
        numpy.random.default_rng(100 * seed + rank).integers(0, 4, shape)
        for rank in range(hvd.size())
    ]


def values(array):
    if isinstance(array, torch.Tensor):
        return array.to(torch.float64).numpy()
    return array.astype("float64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reductions_of_every_type_in_and_out_of_place(make, dtype, shape):
    whole = everyones(shape)
    array = make(whole[hvd.rank()], dtype)
    together = numpy.stack(whole).astype("float64")
    expected = {
        hvd.Sum: together.sum(0),
        hvd.Min: together.min(0),
        hvd.Max: together.max(0),
        hvd.Product: together.prod(0),
    }
    for op, result in expected.items():
        reduced = hvd.allreduce(array, op=op)
        assert type(reduced) is type(array)
        assert reduced.dtype == array.dtype
        assert tuple(reduced.shape) == shape
        assert (values(reduced) == result).all()
        assert (values(array) == whole[hvd.rank()]).all()
    out = make(numpy.zeros(shape), dtype)
    assert hvd.allreduce(array, op=hvd.Sum, out=out) is out
    assert (values(out) == expected[hvd.Sum]).all()
    assert hvd.allreduce(array, op=hvd.Max, out=array) is array
    assert (values(array) == expected[hvd.Max]).all()


def test_booleans_and_bfloat16(make):
    flag = make(hvd.rank() == 1, "bool")
    assert bool(hvd.allreduce(flag, op=hvd.Max))
    assert not bool(hvd.allreduce(flag, op=hvd.Min))
    if make is to_torch:
        tensor = torch.full((5,), hvd.rank() + 1.0, dtype=torch.bfloat16)
    else:
        tensor = numpy.full(5, hvd.rank() + 1.0).astype(pytest.importorskip("ml_dtypes").bfloat16)
    total = hvd.size() * (hvd.size() + 1) / 2
    assert (values(hvd.allreduce(tensor, op=hvd.Sum)) == total).all()
    gathered = hvd.allgather(tensor)
    assert gathered.dtype == tensor.dtype
    assert gathered.shape[0] == 5 * hvd.size()


def test_averages_factors_and_adasum(make):
    array = make(numpy.full(6, hvd.rank() + 1.0), "float32")
    mean = (hvd.size() + 1) / 2
    assert (values(hvd.allreduce(array)) == mean).all()
    scaled = hvd.allreduce(array, prescale_factor=2.0, postscale_factor=0.25)
    assert (values(scaled) == mean / 2).all()
    same = make([1.5, -2.0], "float64")
    assert (values(hvd.allreduce(same, op=hvd.Adasum)) == values(same)).all()


def test_groups_of_arrays(make):
    wholes = [everyones(shape, seed) for seed, shape in enumerate(SHAPES)]
    arrays = [make(whole[hvd.rank()], "float32") for whole in wholes]
    for reduced, whole in zip(hvd.grouped_allreduce(arrays, op=hvd.Sum), wholes):
        assert (values(reduced) == numpy.stack(whole).sum(0)).all()
    pending = hvd.grouped_allreduce_async(arrays, op=hvd.Sum, out=arrays)
    assert all(ours is array for ours, array in zip(pending.wait(), arrays))
    matrices = [make(numpy.full((4, width), hvd.rank()), "int16") for width in (1, 3)]
    for gathered, matrix in zip(hvd.grouped_allgather(matrices), matrices):
        assert tuple(gathered.shape) == (4 * hvd.size(), matrix.shape[1])
    for share in hvd.grouped_reducescatter([make(numpy.ones((8, 2)), "float64")] * 2, op=hvd.Sum):
        rows = 8 // hvd.size() + (hvd.rank() < 8 % hvd.size())
        assert tuple(share.shape) == (rows, 2)
        assert (values(share) == hvd.size()).all()


def test_gathered_rows_may_differ_in_number_and_can_be_written(make):
    for base in (0, 1, 1000):
        rows = base * hvd.rank()
        gathered = hvd.allgather(make(numpy.full((rows, 3), hvd.rank()), "int32"))
        expected = numpy.concatenate([numpy.full((base * r, 3), r) for r in range(hvd.size())])
        assert gathered.shape == expected.shape
        assert (values(gathered) == expected).all()
        gathered += 1
        assert (values(gathered) == expected + 1).all()


def test_broadcast_alltoall_and_reducescatter(make):
    root = hvd.size() - 1
    array = make(numpy.full((2, 2), hvd.rank()), "uint16")
    assert (values(hvd.broadcast(array, root)) == root).all()
    assert hvd.broadcast(array, root, out=array) is array
    assert (values(array) == root).all()

    mine = make(numpy.arange(hvd.size() * 2) + 100 * hvd.rank(), "int64")
    received, rows = hvd.alltoall(mine)
    assert rows == [2] * hvd.size()
    expected = [100 * r + 2 * hvd.rank() + i for r in range(hvd.size()) for i in range(2)]
    assert values(received).tolist() == expected
    splits = [1] * (hvd.size() - 1) + [0]
    received, rows = hvd.alltoall_async(mine, splits).wait()
    assert rows == [splits[hvd.rank()]] * hvd.size()
    assert received.shape[0] == sum(rows)

    share = hvd.reducescatter(make(numpy.ones((hvd.size() + 1, 2)), "float16"), op=hvd.Sum)
    assert tuple(share.shape) == (2 if hvd.rank() == 0 else 1, 2)
    assert (values(share) == hvd.size()).all()


def test_inputs_need_not_be_contiguous_but_outputs_must(make):
    array = make(numpy.arange(12).reshape(3, 4), "float32").T
    reduced = hvd.allreduce(array, op=hvd.Sum)
    assert (values(reduced) == values(array) * hvd.size()).all()
    with pytest.raises(ValueError, match="required to be contiguous"):
        hvd.allreduce(array, op=hvd.Sum, out=array)
    with pytest.raises(ValueError, match="input and output differ"):
        hvd.allreduce(array, op=hvd.Sum, out=make([1.0], "float32"))


def test_what_cannot_be_written_or_read_is_refused_and_nothing_hangs():
    frozen = numpy.ones(3)
    frozen.setflags(write=False)
    with pytest.raises(ValueError, match="read-only"):
        hvd.allreduce(frozen, out=frozen)
    assert hvd.allreduce(frozen).tolist() == [1.0] * 3
    swapped = numpy.ones(3, dtype=numpy.dtype("float32").newbyteorder())
    with pytest.raises(ValueError, match="not in native byte order"):
        hvd.allreduce(swapped)
    with pytest.raises(ValueError, match="uint32 is not supported"):
        hvd.allreduce(numpy.ones(3, dtype="uint32"))
    with pytest.raises(TypeError, match=r"numpy\.asarray"):
        hvd.allreduce(numpy.ones(1), out=numpy.float64(1))
    with pytest.raises(TypeError, match="NumPy arrays and torch tensors"):
        hvd.allreduce([1.0])
    hvd.barrier()


def test_many_in_flight_by_name_in_any_order():
    order = numpy.random.default_rng(hvd.rank()).permutation(50)
    arrays = {i: numpy.full(100 + i, float(hvd.rank())) for i in order}
    pending = {i: hvd.allreduce_async(arrays[i], name=f"p{i}", op=hvd.Sum) for i in order}
    total = sum(range(hvd.size()))
    for i, each in pending.items():
        assert (each.wait() == total).all()
        assert each.poll()
        assert each.wait() is each.wait(), i
    assert hvd.join() in range(hvd.size())
