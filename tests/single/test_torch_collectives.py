"""The collectives in a world of one: results, checks and error texts."""

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from horovod import _native

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
        hvd.allreduce(tensor, op=hvd.Sum),
        hvd.allgather(tensor),
        hvd.broadcast(tensor, 0),
        hvd.grouped_allreduce([tensor], op=hvd.Max)[0],
    ):
        assert result.dtype == dtype
        assert torch.equal(result, tensor)
        assert result.data_ptr() != tensor.data_ptr()


def test_scale_factors_apply_before_and_after():
    reduced = hvd.allreduce(torch.ones(3), prescale_factor=3.0, postscale_factor=0.5)
    assert torch.equal(reduced, torch.full((3,), 1.5))


def test_in_place_forms_modify_the_tensor():
    tensor = torch.ones(3)
    assert hvd.allreduce_(tensor, prescale_factor=2.0) is tensor
    assert hvd.synchronize(hvd.allreduce_async_(tensor, prescale_factor=2.0)) is tensor
    assert hvd.broadcast_(tensor, 0) is tensor
    assert torch.equal(tensor, torch.full((3,), 4.0))
    group = [torch.ones(2), torch.ones(3)]
    results = hvd.grouped_allreduce_(group, prescale_factor=2.0)
    assert all(result is tensor for result, tensor in zip(results, group))
    assert torch.equal(group[1], torch.full((3,), 2.0))


def test_a_group_may_mix_element_types_or_be_empty():
    group = [torch.ones(2), torch.ones(3, dtype=torch.int64), torch.ones(1)]
    handle = hvd.grouped_allreduce_async_(group, op=hvd.Sum)
    assert hvd.poll(handle) in (True, False)
    results = hvd.synchronize(handle)
    assert [result.dtype for result in results] == [torch.float32, torch.int64, torch.float32]
    assert all(result is tensor for result, tensor in zip(results, group))
    assert hvd.synchronize(handle) is None
    assert hvd.grouped_allreduce([]) == []
    assert hvd.synchronize(hvd.grouped_allreduce_async([])) == []


def test_a_handle_is_valid_until_it_is_waited_for():
    handle = hvd.allgather_async(torch.ones(2))
    assert hvd.poll(handle) in (True, False)
    assert torch.equal(hvd.synchronize(handle), torch.ones(2))
    assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError) as error:
        hvd.poll(handle)
    assert str(error.value) == f"Handle {handle} was not created or has been cleared."


def test_average_is_an_old_spelling_of_op():
    with pytest.warns(DeprecationWarning, match=r"removed in v1\.0"):
        hvd.allreduce(torch.ones(1), average=False)
    with pytest.raises(ValueError) as error:
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)
    assert str(error.value) == (
        "The op parameter supersedes average. Please provide only one of them."
    )


def test_adasum_of_one_rank_returns_its_tensor_and_accepts_floats_only():
    tensor = torch.tensor([1.5, -2.0])
    assert torch.equal(hvd.allreduce(tensor, op=hvd.Adasum), tensor)
    halved = hvd.allreduce(tensor, op=hvd.Adasum, postscale_factor=0.5)
    assert torch.equal(halved, tensor / 2)
    with pytest.raises(ValueError, match="floating-point tensors only"):
        hvd.allreduce(torch.ones(1, dtype=torch.int32), op=hvd.Adasum)
    with pytest.raises(ValueError, match="floating-point tensors only"):
        hvd.grouped_allreduce([torch.ones(1, dtype=torch.bool)], op=hvd.Adasum)


@pytest.mark.parametrize("op", [-1, 6, 99])
def test_an_unknown_reduction_is_refused(op):
    with pytest.raises((ValueError, NotImplementedError)):
        hvd.allreduce(torch.ones(1), op=op)


def test_tensors_that_are_not_contiguous_are_copied_or_refused():
    tensor = torch.arange(6.0).view(2, 3).t()
    for result in (
        hvd.allreduce(tensor),
        hvd.synchronize(hvd.allreduce_async(tensor)),
        hvd.allgather(tensor),
        hvd.broadcast(tensor, 0),
        hvd.grouped_allreduce([tensor])[0],
    ):
        assert torch.equal(result, tensor)
    for call in (
        lambda: hvd.allreduce_(tensor),
        lambda: hvd.allreduce_async_(tensor),
        lambda: hvd.grouped_allreduce_([tensor]),
        lambda: hvd.broadcast_(tensor, 0),
    ):
        with pytest.raises(ValueError) as error:
            call()
        assert str(error.value) == "Tensor is required to be contiguous."


def test_an_output_that_shares_memory_with_another_tensor_is_refused():
    tensor = torch.arange(6.0)
    left, right = tensor[:4], tensor[2:]
    for inputs, outputs in (
        ([left], [right]),
        ([left, right], [left, right]),
        ([torch.ones(4), right], [left, torch.ones(4)]),
        ([tensor, tensor], [tensor, tensor]),
    ):
        with pytest.raises(ValueError, match="an output shares memory with another tensor"):
            _native.grouped_allreduce(inputs, outputs, "overlap", hvd.Sum)
    with pytest.raises(ValueError, match="an output shares memory with another tensor"):
        _native.allreduce(left, right, "overlap", hvd.Sum)
    assert torch.equal(tensor, torch.arange(6.0))
    results = hvd.grouped_allreduce([left, right, tensor], op=hvd.Sum)
    assert [len(result) for result in results] == [4, 4, 6]
    assert hvd.grouped_allreduce_([tensor[:3], tensor[3:]], op=hvd.Sum)[1][0] == 3.0


def test_strides_of_dimensions_of_length_one_do_not_matter():
    tensor = torch.arange(8.0).view(4, 2)[:1, :1]
    assert tensor.is_contiguous()
    assert hvd.allreduce_(tensor, prescale_factor=2.0) is tensor
    for result in (hvd.allreduce(tensor), hvd.allgather(tensor), hvd.broadcast(tensor, 0)):
        assert torch.equal(result, tensor)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_an_unsupported_element_type_is_a_value_error(dtype):
    tensor = torch.ones(2, dtype=dtype)
    for call in (
        lambda: hvd.allreduce(tensor),
        lambda: hvd.allreduce_(tensor),
        lambda: hvd.allgather(tensor),
        lambda: hvd.broadcast(tensor, 0),
    ):
        with pytest.raises(ValueError, match=r"Tensor type .*complex.* is not supported\."):
            call()


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        (np.ones(2), r"`numpy\.ndarray`; make it one with torch\.as_tensor"),
        ([torch.ones(2)], r"`list`; for several tensors call the grouped form"),
        (1.0, r"`float`; make it one with torch\.tensor"),
        (None, "`NoneType`"),
    ],
)
def test_non_tensors_are_type_errors_with_a_hint(wrong, advice):
    fp16 = hvd.Compression.fp16
    for call in (
        lambda: hvd.allreduce(wrong),
        lambda: hvd.allreduce(wrong, compression=fp16),
        lambda: hvd.allreduce_(wrong),
        lambda: hvd.allreduce_async(wrong),
        lambda: hvd.allreduce_async_(wrong),
        lambda: hvd.grouped_allreduce([wrong]),
        lambda: hvd.grouped_allreduce_([wrong]),
        lambda: hvd.grouped_allreduce_async([wrong]),
        lambda: hvd.sparse_allreduce_async(wrong, "sparse", hvd.Sum),
        lambda: hvd.allgather(wrong),
        lambda: hvd.allgather_async(wrong),
        lambda: hvd.grouped_allgather([wrong]),
        lambda: hvd.broadcast(wrong, 0),
        lambda: hvd.broadcast_(wrong, 0),
        lambda: hvd.broadcast_async(wrong, 0),
        lambda: hvd.alltoall(wrong),
        lambda: hvd.alltoall_async(wrong),
        lambda: hvd.reducescatter(wrong),
        lambda: hvd.reducescatter_async(wrong),
        lambda: hvd.grouped_reducescatter([wrong], compression=fp16),
    ):
        with pytest.raises(TypeError, match=f"takes torch tensors, but this is a {advice}"):
            call()


def test_tensors_on_other_devices_and_sparse_tensors_are_value_errors():
    with pytest.raises(ValueError, match=r"on the CPU or on an NVIDIA GPU.*`meta`"):
        hvd.allreduce(torch.ones(1, device="meta"))
    with pytest.raises(ValueError, match=r"dense tensors only.*to_dense"):
        hvd.allreduce_(torch.eye(2).to_sparse())


def test_a_scalar_can_be_reduced_but_not_gathered():
    assert hvd.allreduce(torch.tensor(3.0)).shape == ()
    with pytest.raises((ValueError, hvd.HorovodInternalError), match="rank-zero tensor"):
        hvd.allgather(torch.tensor(3.0))


@pytest.mark.parametrize("root", [-1, 1])
def test_a_root_outside_the_world_is_refused(root):
    with pytest.raises((ValueError, hvd.HorovodInternalError), match=f"root rank {root}"):
        hvd.broadcast(torch.ones(1), root)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_empty_tensors_are_accepted(shape):
    tensor = torch.ones(shape, dtype=torch.bfloat16)
    for result in (hvd.allreduce(tensor), hvd.allgather(tensor), hvd.broadcast(tensor, 0)):
        assert result.shape == shape
        assert result.dtype == torch.bfloat16


def test_gradients_flow_through():
    tensor = torch.arange(3.0, requires_grad=True)
    for result in (
        hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=2.0),
        hvd.grouped_allreduce([tensor], prescale_factor=2.0)[0],
        2 * hvd.allgather(tensor),
        2 * hvd.broadcast(tensor, 0),
    ):
        (gradient,) = torch.autograd.grad(result.sum(), tensor)
        assert torch.equal(gradient, torch.full((3,), 2.0))
    with torch.no_grad():
        assert not hvd.allreduce(tensor).requires_grad


@pytest.mark.parametrize("name", ["none", "fp16", "bf16"])
def test_compression_restores_the_element_type(name):
    compression = getattr(hvd.Compression, name)
    for tensor in (torch.tensor([1.0, 0.5]), torch.tensor([3, 4])):
        result = hvd.allreduce(tensor, compression=compression)
        assert result.dtype == tensor.dtype
        assert torch.equal(result, tensor)
    narrow, _ = hvd.Compression.bf16.compress(torch.ones(1))
    assert narrow.dtype == torch.bfloat16
