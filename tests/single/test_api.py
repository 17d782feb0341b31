"""The names, argument orders and defaults that Horovod's users rely on."""

import copy
import inspect
import json
import pickle

import cloudpickle
import numpy
import pytest

import horovod
import horovod.torch as hvd
from horovod import raw
from horovod.common import reductions
from horovod.torch import mpi_ops
from horovod.torch.optimizer import _DistributedOptimizer

REDUCE = "prescale_factor=1.0, postscale_factor=1.0, process_set=GLOBAL"
SCATTER = "process_set=GLOBAL, prescale_factor=1.0, postscale_factor=1.0"
SIGNATURES = {
    "init": "comm=None, process_sets=None",
    "shutdown": "",
    "start_timeline": "file_path, mark_cycles=False",
    "stop_timeline": "",
    "allreduce": f"tensor, average=None, name=None, compression=NONE, op=None, {REDUCE}",
    "allreduce_": f"tensor, average=None, name=None, op=None, {REDUCE}",
    "allreduce_async": f"tensor, average=None, name=None, op=None, {REDUCE}",
    "allreduce_async_": f"tensor, average=None, name=None, op=None, {REDUCE}",
    "grouped_allreduce": f"tensors, average=None, name=None, compression=NONE, op=None, {REDUCE}",
    "grouped_allreduce_": f"tensors, average=None, name=None, op=None, {REDUCE}",
    "grouped_allreduce_async": f"tensors, average=None, name=None, op=None, {REDUCE}",
    "grouped_allreduce_async_": f"tensors, average=None, name=None, op=None, {REDUCE}",
    "allgather": "tensor, name=None, process_set=GLOBAL",
    "allgather_async": "tensor, name=None, process_set=GLOBAL",
    "grouped_allgather": "tensors, name=None, process_set=GLOBAL",
    "grouped_allgather_async": "tensors, name=None, process_set=GLOBAL",
    "sparse_allreduce_async": "tensor, name, op, process_set=GLOBAL",
    "alltoall": "tensor, splits=None, name=None, process_set=GLOBAL",
    "alltoall_async": "tensor, splits=None, name=None, process_set=GLOBAL",
    "reducescatter": f"tensor, name=None, compression=NONE, op=0, {SCATTER}",
    "reducescatter_async": f"tensor, name=None, op=0, {SCATTER}",
    "grouped_reducescatter": f"tensors, name=None, compression=NONE, op=0, {SCATTER}",
    "grouped_reducescatter_async": f"tensors, name=None, op=0, {SCATTER}",
    "broadcast": "tensor, root_rank, name=None, process_set=GLOBAL",
    "broadcast_": "tensor, root_rank, name=None, process_set=GLOBAL",
    "broadcast_async": "tensor, root_rank, name=None, process_set=GLOBAL",
    "broadcast_async_": "tensor, root_rank, name=None, process_set=GLOBAL",
    "join": "device=-1",
    "barrier": "process_set=GLOBAL",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "poll": "handle",
    "synchronize": "handle",
    "broadcast_parameters": "params, root_rank",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "broadcast_object": "obj, root_rank=0, name=None, process_set=GLOBAL",
    "allgather_object": "obj, name=None",
    "DistributedOptimizer": (
        "optimizer, named_parameters=None, compression=NONE, backward_passes_per_step=1, op=0, "
        "gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False, "
        "process_set=GLOBAL"
    ),
    "SyncBatchNorm": (
        "num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True"
    ),
}


def spelled(parameter):
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    special = {id(hvd.global_process_set): "GLOBAL", id(hvd.Compression.none): "NONE"}
    return f"{parameter.name}={special.get(id(parameter.default), parameter.default)}"


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_horovods(name):
    parameters = inspect.signature(getattr(hvd, name)).parameters.values()
    # What Ronde adds can only be given by name, so it gets in the way of no call.
    horovods = [each for each in parameters if each.kind is not each.KEYWORD_ONLY]
    assert ", ".join(map(spelled, horovods)) == SIGNATURES[name]


def test_reductions_have_horovods_numbers():
    reductions = [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product]
    assert reductions == list(range(6))


@pytest.mark.parametrize("op", hvd.ReduceOp)
def test_a_reduction_is_its_number_and_prints_its_name(op):
    number = int(op)
    assert isinstance(op, int) and op == number and hash(op) == hash(number)
    assert {number: "found"}[op] == "found" and [10, 11, 12, 13, 14, 15][op] == 10 + number
    # Programs write these into names, files and generated code, so they stay plain numbers.
    assert f"{op}" == str(op) == f"{op:d}" == json.dumps(op) == str(number)
    assert repr(op) == f"ReduceOp.{op.name}" and getattr(hvd, op.name) is op
    assert numpy.asarray(op).dtype == numpy.asarray(number).dtype


@pytest.mark.parametrize("op", hvd.ReduceOp)
def test_a_reduction_can_be_pickled(op):
    assert copy.copy(op) is op and copy.deepcopy([op])[0] is op
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(op, protocol)) is op
    assert cloudpickle.loads(cloudpickle.dumps(op)) is op


def test_an_op_that_is_not_a_reduction_is_refused():
    import torch

    foreign = torch.distributed.ReduceOp.SUM
    assert foreign.__index__() == hvd.Average, "it would be taken for an average"
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    hvd.init()
    for op in (foreign, "sum", 9):
        for call in (
            lambda op: hvd.allreduce(torch.ones(2), op=op),
            lambda op: hvd.DistributedOptimizer(optimizer, op=op),
            lambda op: raw.allreduce(torch.ones(2), op=op),
        ):
            with pytest.raises(ValueError, match=r"^op is .*; pass hvd.Average, hvd.Sum, "):
                call(op)
    with pytest.raises(ValueError, match=r"^op is "):
        hvd.reducescatter(torch.ones(2), op=foreign)


def test_reductions_are_the_same_in_every_module():
    assert raw.Sum is reductions.Sum is mpi_ops.Sum is hvd.Sum


def test_defaults_print_as_they_are_written():
    shown = str(inspect.signature(hvd.reducescatter))
    assert "op: 'int' = ReduceOp.Average" in shown
    assert "compression: 'type[Compressor]' = Compression.none" in shown
    assert "process_set: 'ProcessSet' = global_process_set" in shown
    assert repr(hvd.ProcessSet([1, 0])) == str(hvd.ProcessSet([0, 1]))


def test_a_user_defined_compressor_prints_like_any_class():
    class Half(hvd.Compression.fp16):
        """Derived from one of ours."""

    assert repr(Half).startswith("<class ") and repr(hvd.Compression.fp16) == "Compression.fp16"


def test_all_lists_exactly_the_public_names():
    assert all(hasattr(hvd, name) for name in hvd.__all__)
    assert not hasattr(hvd, "something") and not hasattr(horovod, "something")


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("run", "func"),
        ("TorchState", "model=None, optimizer=None, kwargs"),
        ("ElasticSampler", "dataset, shuffle=True, seed=0"),
    ],
)
def test_signatures_of_elastic_training_are_horovods(name, signature):
    assert name in hvd.elastic.__all__
    parameters = inspect.signature(getattr(hvd.elastic, name)).parameters.values()
    assert ", ".join(map(spelled, parameters)) == signature


def test_private_names_that_other_projects_use_exist():
    assert mpi_ops.synchronize is hvd.synchronize
    assert mpi_ops._basics.gloo_built()
    assert mpi_ops.handle_average_backwards_compatibility(None, None) == hvd.Average
    assert callable(mpi_ops.is_homogeneous)
    assert isinstance(_DistributedOptimizer, type)
