"""`horovod.raw`: torch tensors in every collective; what may be read and written."""

import numpy
import pytest
import torch

import horovod.raw as hvd


def to_numpy(values, dtype):
    return numpy.array(values).astype(dtype)


def to_torch(values, dtype):
    return torch.as_tensor(values).to(getattr(torch, dtype))


KINDS = {"numpy": to_numpy, "torch": to_torch}


@pytest.fixture(params=KINDS)
def make(request):
    return KINDS[request.param]


def values(array):
    if isinstance(array, torch.Tensor):
        return array.to(torch.float64).numpy()
    return array.astype("float64")


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "bfloat16", "float32", "bool"])
def test_tensors_come_back_as_tensors(dtype):
    tensor = to_torch(numpy.full((hvd.size(), 2), hvd.rank() == 1), dtype)
    single = [
        hvd.allreduce(tensor, op=hvd.Max),
        hvd.broadcast(tensor, 1),
        hvd.broadcast(tensor, 1, out=tensor.clone()),
        hvd.grouped_allreduce([tensor, tensor], op=hvd.Max)[1],
    ]
    for result in single:
        assert isinstance(result, torch.Tensor) and result.dtype == tensor.dtype
        assert torch.equal(result, torch.ones_like(tensor))
    received, rows = hvd.alltoall(tensor)
    assert rows == [1] * hvd.size()
    gathered = [hvd.allgather(tensor), *hvd.grouped_allgather([tensor])]
    share = hvd.reducescatter(tensor, op=hvd.Sum)
    for result in (received, share, *gathered):
        assert isinstance(result, torch.Tensor) and result.dtype == tensor.dtype
    assert torch.equal(received[1], torch.ones_like(tensor[0])) and received.sum() == 2
    assert share.tolist() == [[1, 1]]
    for result in gathered:
        assert result.shape == (hvd.size() ** 2, 2) and result.sum() == 2 * hvd.size()
        # It owns its memory.
        assert result.zero_().sum() == 0


def test_inputs_need_not_be_contiguous_but_outputs_must(make):
    array = make(numpy.arange(12).reshape(3, 4), "float32").T
    reduced = hvd.allreduce(array, op=hvd.Sum)
    assert (values(reduced) == values(array) * hvd.size()).all()
    with pytest.raises(ValueError, match="required to be contiguous"):
        hvd.allreduce(array, op=hvd.Sum, out=array)
    with pytest.raises(ValueError, match="input and output differ"):
        hvd.allreduce(array, op=hvd.Sum, out=make([1.0], "float32"))


def test_arrays_that_cannot_be_written_or_read_are_rejected_and_nothing_hangs():
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
