"""Alltoall, reducescatter, grouped allgather and join in a world of one: results and errors."""

import pytest
import torch

import horovod.torch as hvd

DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
]
if hasattr(torch, "uint16"):
    DTYPES.append(torch.uint16)


@pytest.fixture(autouse=True)
def _world():
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_single_rank_gets_its_input_back(dtype):
    tensor = torch.tensor([[1, 0, 1], [1, 1, 0]]).to(dtype)
    for result in (
        hvd.alltoall(tensor),
        hvd.alltoall(tensor, [2])[0],
        hvd.synchronize(hvd.alltoall_async(tensor)),
        hvd.grouped_allgather([tensor])[0],
        hvd.synchronize(hvd.grouped_allgather_async([tensor]))[0],
        hvd.reducescatter(tensor, op=hvd.Sum),
        hvd.synchronize(hvd.reducescatter_async(tensor, op=hvd.Sum)),
        hvd.grouped_reducescatter([tensor], op=hvd.Sum)[0],
        hvd.synchronize(hvd.grouped_reducescatter_async([tensor], op=hvd.Sum))[0],
    ):
        assert result.dtype == dtype
        assert torch.equal(result, tensor)
        assert result.data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize("splits", [[2], (2,), torch.tensor([2], dtype=torch.int32)])
def test_alltoall_with_splits_returns_a_pair(splits):
    tensor = torch.arange(6.0).view(3, 2)
    for received, numbers in (
        hvd.alltoall(tensor, splits),
        hvd.synchronize(hvd.alltoall_async(tensor, splits, name="pair")),
    ):
        assert torch.equal(received, tensor[:2])
        assert numbers.dtype == torch.int32
        assert numbers.tolist() == [2]


WRONG_SPLITS = [
    ([[1]], "alltoall expects a 1D splits tensor"),
    (torch.tensor(1, dtype=torch.int32), "alltoall expects a 1D splits tensor"),
    (torch.tensor([1]), "alltoall expects splits to contain 32-bit integer elements."),
    (torch.tensor([1.0]), "alltoall expects splits to contain 32-bit integer elements."),
    ([1.5], "alltoall expects splits to contain 32-bit integer elements."),
    ([4], "Sum of splits entries is greater than the first dimension of tensor."),
    ([1, 1], "Number of entries in splits does not equal number of workers."),
    ([], "Number of entries in splits does not equal number of workers."),
    ([-1], "alltoall expects splits that are not negative"),
]


@pytest.mark.parametrize(("splits", "text"), WRONG_SPLITS, ids=repr)
@pytest.mark.parametrize("call", [hvd.alltoall, hvd.alltoall_async])
def test_invalid_splits_are_value_errors(call, splits, text):
    with pytest.raises(ValueError) as error:
        call(torch.ones(3, 2), splits)
    assert text in str(error.value)


def test_scalars_cannot_be_split():
    scalar = torch.tensor(1.0)
    with pytest.raises(ValueError, match="alltoall does not support scalar inputs"):
        hvd.alltoall(scalar)
    for call in (
        lambda: hvd.reducescatter(scalar),
        lambda: hvd.reducescatter_async(scalar),
        lambda: hvd.grouped_reducescatter([torch.ones(1), scalar]),
    ):
        with pytest.raises(ValueError, match="Reducescatter does not support scalar inputs"):
            call()
    with pytest.raises((ValueError, hvd.HorovodInternalError), match="rank-zero tensor"):
        hvd.grouped_allgather([torch.ones(1), scalar])


@pytest.mark.parametrize("op", [hvd.Adasum, hvd.Min, hvd.Max, hvd.Product, 99])
def test_reducescatter_supports_only_average_and_sum(op):
    for call in (
        lambda: hvd.reducescatter(torch.ones(1), op=op),
        lambda: hvd.reducescatter_async(torch.ones(1), op=op),
        lambda: hvd.grouped_reducescatter([torch.ones(1)], op=op),
    ):
        # Horovod programs catch different classes in different frameworks.
        for kind in (RuntimeError, NotImplementedError, ValueError):
            with pytest.raises(kind) as error:
                call()
            assert str(error.value) == "Reducescatter currently only supports AVERAGE and SUM."


def test_scale_factors_and_compression():
    tensor = torch.tensor([1.0, 0.5])
    how = {"prescale_factor": 3.0, "postscale_factor": 0.5}
    for result in (
        hvd.reducescatter(tensor, **how),
        hvd.reducescatter(tensor, compression=hvd.Compression.fp16, **how),
        hvd.grouped_reducescatter([tensor], compression=hvd.Compression.bf16, **how)[0],
    ):
        assert result.dtype == torch.float32
        assert torch.equal(result, tensor * 1.5)


def test_groups_may_mix_element_types_or_be_empty():
    group = [torch.ones(2), torch.ones(3, dtype=torch.int64), torch.ones(1)]
    for call in (hvd.grouped_allgather_async, hvd.grouped_reducescatter_async):
        handle = call(group)
        assert hvd.poll(handle) in (True, False)
        results = hvd.synchronize(handle)
        assert [result.dtype for result in results] == [tensor.dtype for tensor in group]
        assert all(torch.equal(result, tensor) for result, tensor in zip(results, group))
        assert hvd.synchronize(handle) is None
        assert hvd.synchronize(call([])) == []
    assert hvd.grouped_allgather([]) == ()
    assert hvd.grouped_reducescatter([]) == []


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_empty_tensors_are_accepted(shape):
    tensor = torch.ones(shape, dtype=torch.bfloat16)
    for result in (
        hvd.alltoall(tensor),
        hvd.reducescatter(tensor),
        *hvd.grouped_allgather([tensor, tensor]),
    ):
        assert result.shape == shape
        assert result.dtype == torch.bfloat16


def test_tensors_that_are_not_contiguous_are_copied():
    tensor = torch.arange(6.0).view(2, 3).t()
    for result in (
        hvd.alltoall(tensor),
        hvd.synchronize(hvd.alltoall_async(tensor)),
        hvd.reducescatter(tensor),
        hvd.synchronize(hvd.reducescatter_async(tensor)),
        hvd.grouped_allgather([tensor])[0],
    ):
        assert torch.equal(result, tensor)


def test_gradients_flow_through():
    tensor = torch.arange(3.0, requires_grad=True)
    for result in (
        2 * hvd.alltoall(tensor),
        2 * hvd.alltoall(tensor, [3])[0],
        hvd.reducescatter(tensor, op=hvd.Sum, prescale_factor=2.0),
        hvd.grouped_reducescatter([tensor], postscale_factor=2.0)[0],
        2 * hvd.grouped_allgather([tensor])[0],
    ):
        (gradient,) = torch.autograd.grad(result.sum(), tensor)
        assert torch.equal(gradient, torch.full((3,), 2.0))
    (gradient,) = torch.autograd.grad(hvd.alltoall(tensor, [1])[0].sum(), tensor)
    assert gradient.tolist() == [1, 0, 0]
    mixed = hvd.grouped_allgather([tensor, torch.ones(2, dtype=torch.int64)])
    assert [result.requires_grad for result in mixed] == [True, False]
    (gradient,) = torch.autograd.grad(mixed[0].sum(), tensor)
    assert torch.equal(gradient, torch.ones(3))
    with torch.no_grad():
        assert not hvd.reducescatter(tensor).requires_grad


def test_sparse_tensors():
    sparse = torch.eye(3).to_sparse()
    result = hvd.sparse_allreduce_async(sparse, "sparse", hvd.Average)()
    assert result.is_sparse
    assert torch.equal(result.to_dense(), torch.eye(3))
    unnamed = hvd.sparse_allreduce_async(sparse, None, hvd.Sum)
    assert torch.equal(unnamed().to_dense(), torch.eye(3))
    with pytest.raises(ValueError, match="not a sparse COO tensor"):
        hvd.sparse_allreduce_async(torch.eye(3), "dense", hvd.Sum)
    with pytest.raises(ValueError, match="can only be averaged or summed"):
        hvd.sparse_allreduce_async(sparse, "sparse", hvd.Max)


def test_a_single_rank_is_the_last_to_join():
    assert hvd.join() == 0
    assert hvd.join(device=0) == 0
    assert torch.equal(hvd.allreduce(torch.ones(2)), torch.ones(2))
