"""Horovod's interface for MXNet: collectives through its engine, optimizers, trainers, errors."""

import os
import warnings

import mxnet as mx
import numpy as np
import pytest
from mxnet.base import MXNetError

import horovod.mxnet as hvd

RANK = int(os.environ.get("HOROVOD_RANK", "0"))
SIZE = int(os.environ.get("HOROVOD_SIZE", "1"))
EVERYONE = np.arange(1, SIZE + 1)
TYPES = ["float16", "float32", "float64", "uint8", "int8", "int32", "int64"]


def own(shape, dtype="float32"):
    return mx.nd.ones(shape, dtype=dtype) * (RANK + 1)


@pytest.mark.parametrize("dtype", TYPES)
def test_reductions_and_broadcasts_of_every_type(dtype):
    tensor = own((3, 2), dtype)
    total = hvd.allreduce(tensor, op=hvd.Sum)
    assert total.dtype == np.dtype(dtype) and total.shape == (3, 2)
    assert (total.asnumpy() == EVERYONE.sum()).all()
    assert (tensor.asnumpy() == RANK + 1).all()
    assert hvd.allreduce_(tensor, op=hvd.Max, name=f"max.{dtype}") is tensor
    assert (tensor.asnumpy() == SIZE).all()
    for root in range(SIZE):
        assert (hvd.broadcast(own((4,), dtype), root).asnumpy() == root + 1).all()
        target = own((4,), dtype)
        assert hvd.broadcast_(target, root) is target
        assert (target.asnumpy() == root + 1).all()


def test_averages_factors_and_the_old_argument():
    np.testing.assert_allclose(hvd.allreduce(own(4)).asnumpy(), EVERYONE.mean(), rtol=1e-6)
    scaled = hvd.allreduce(own(4), op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0)
    np.testing.assert_allclose(scaled.asnumpy(), 6 * EVERYONE.sum(), rtol=1e-6)
    with pytest.warns(DeprecationWarning, match="has been replaced with `op`"):
        assert (hvd.allreduce(own(4), False).asnumpy() == EVERYONE.sum()).all()
    with pytest.raises(ValueError, match="supersedes average"):
        hvd.allreduce(own(4), average=True, op=hvd.Sum)
    with pytest.raises(AssertionError):
        hvd.allreduce(own(4), op=hvd.Adasum)
    least, product = hvd.allreduce(own(2), op=hvd.Min), hvd.allreduce(own(2), op=hvd.Product)
    assert (least.asnumpy() == 1).all() and (product.asnumpy() == EVERYONE.prod()).all()


def test_many_are_in_flight_and_computation_waits_only_for_what_it_uses():
    # In another order on every rank: names find each other.
    order = range(100) if RANK % 2 else range(99, -1, -1)
    tensors = [own(50_000) * (number + 1) for number in range(100)]
    for number in order:
        hvd.allreduce_(tensors[number], op=hvd.Sum, name=f"flight.{number}")
    for number, tensor in enumerate(tensors):
        assert ((tensor * 2).asnumpy() == 2 * (number + 1) * EVERYONE.sum()).all()


def test_groups_of_mixed_types():
    tensors = [own(3), own((2, 2), "float64"), own(5), own(1, "int32")]
    for result in hvd.grouped_allreduce(tensors, op=hvd.Sum):
        assert (result.asnumpy() == EVERYONE.sum()).all()
    in_place = hvd.grouped_allreduce_(tensors, op=hvd.Sum, name="group")
    assert all(one is other for one, other in zip(in_place, tensors))
    assert all((each.asnumpy() == EVERYONE.sum()).all() for each in tensors)
    assert hvd.grouped_allreduce([]) == []
    gathered = hvd.grouped_allgather([own((1, 2)), own((1,), "int64")])
    assert [each.shape for each in gathered] == [(SIZE, 2), (SIZE,)]
    assert gathered[1].asnumpy().tolist() == EVERYONE.tolist()
    parts = hvd.grouped_reducescatter([own((SIZE, 2)), own(SIZE, "float64")], op=hvd.Sum)
    assert all((each.asnumpy() == EVERYONE.sum()).all() for each in parts)


def test_rows_are_gathered_exchanged_and_scattered():
    gathered = hvd.allgather(own((RANK + 1, 2)))
    np.testing.assert_array_equal(gathered.asnumpy()[:, 0], np.repeat(EVERYONE, EVERYONE))
    received = hvd.alltoall(mx.nd.arange(SIZE * 2) + 100 * RANK)
    expected = (100 * (EVERYONE - 1)[:, None] + 2 * RANK + np.arange(2)).reshape(-1)
    np.testing.assert_array_equal(received.asnumpy(), expected)
    received, rows = hvd.alltoall(own(int(EVERYONE.sum())), mx.nd.array(EVERYONE, dtype="int32"))
    np.testing.assert_array_equal(received.asnumpy(), np.repeat(EVERYONE, RANK + 1))
    assert rows.asnumpy().tolist() == [RANK + 1] * SIZE
    share = hvd.reducescatter(mx.nd.arange(SIZE + 1))
    np.testing.assert_array_equal(share.asnumpy(), np.array_split(np.arange(SIZE + 1), SIZE)[RANK])
    with mx.util.np_shape(True), pytest.raises(ValueError, match="scalar"):
        hvd.reducescatter(mx.nd.ones(()))


def test_process_sets_and_objects():
    some = hvd.add_process_set(range(1, SIZE))
    if some.included():
        result = hvd.allreduce(own(3), op=hvd.Sum, process_set=some)
        assert (result.asnumpy() == EVERYONE[1:].sum()).all()
        assert hvd.allgather(own(1), process_set=some).asnumpy().tolist() == EVERYONE[1:].tolist()
    else:
        with pytest.raises((MXNetError, ValueError), match="not a member"):
            hvd.allreduce(own(3), process_set=some).asnumpy()
    assert hvd.broadcast_object({"from": RANK}, SIZE - 1) == {"from": SIZE - 1}
    assert hvd.allgather_object("x" * RANK) == ["x" * rank for rank in range(SIZE)]
    hvd.remove_process_set(some)


def test_errors_come_where_the_result_is_used():
    result = hvd.allreduce(mx.nd.ones(RANK + 1), name="mismatch")
    with pytest.raises(MXNetError, match="Mismatched ALLREDUCE tensor shapes"):
        result.asnumpy()
    with pytest.raises(MXNetError, match="invalid root rank"):
        hvd.broadcast(mx.nd.ones(1), 99).asnumpy()
    with pytest.raises(ValueError, match="stored as `row_sparse`"):
        hvd.allreduce(mx.nd.sparse.zeros("row_sparse", (2, 2)))
    for wrong in (np.ones(2), [1.0], None):
        with pytest.raises(TypeError, match="not an array of MXNet"):
            hvd.allreduce(wrong)
    for wrong in ([-1] * SIZE, [0.5] * SIZE, [[1]] * SIZE):
        with pytest.raises(ValueError, match="splits"):
            hvd.alltoall(mx.nd.ones(SIZE), wrong)
    for kind in (MXNetError, RuntimeError, ValueError):
        with pytest.raises(kind, match="splits not provided"):
            hvd.alltoall(mx.nd.ones(SIZE + 1))
        with pytest.raises(kind, match="Sum of splits entries is greater"):
            hvd.alltoall(mx.nd.ones(SIZE), [2] * SIZE)
        with pytest.raises(kind, match="32-bit integer elements"):
            hvd.alltoall(mx.nd.ones(SIZE), mx.nd.ones(SIZE))
        with pytest.raises(kind, match="only supports AVERAGE and SUM"):
            hvd.reducescatter(mx.nd.ones(SIZE), op=hvd.Adasum)
        with pytest.raises(kind, match="Process set provided does not exist"):
            hvd.allgather(mx.nd.ones(1), process_set=hvd.ProcessSet([0]))
    with pytest.raises(MXNetError, match="Mismatched ALLGATHER tensor shapes") as failure:
        hvd.allgather(mx.nd.ones([1, RANK + 1]))
    assert isinstance(failure.value, hvd.HorovodInternalError)
    for wrong in ("sgd", None):
        with pytest.raises(ValueError, match="is not an optimizer of MXNet"):
            hvd.DistributedOptimizer(wrong)
    assert hvd.allreduce(mx.nd.ones(1), op=hvd.Sum).asscalar() == SIZE


def network():
    block = mx.gluon.nn.HybridSequential(prefix="net_")
    with block.name_scope():
        block.add(mx.gluon.nn.Dense(8, activation="tanh"), mx.gluon.nn.Dense(2))
    return block


def batch(step, rank, size, rows=4):
    whole = np.random.default_rng(step).normal(size=(rows * SIZE, 6)).astype("float32")
    return mx.nd.array(whole[rank * rows * SIZE // size : (rank + 1) * rows * SIZE // size])


def train(block, trainer, rank, size, steps=4):
    for step in range(steps):
        x = batch(step, rank, size)
        with mx.autograd.record():
            loss = ((block(x) - x[:, :2].sin()) ** 2).sum()
        loss.backward()
        trainer.step(x.shape[0])
    return {name: p.data().asnumpy() for name, p in block.collect_params().items()}


OPTIONS = [{}, {"num_groups": 2}, {"gradient_predivide_factor": 2.0}]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "groups", "predivided"])
def test_ranks_train_as_one(options):
    mx.random.seed(RANK)
    block = network()
    block.initialize(mx.init.Xavier())
    # Shapes are not known yet: the parameters come from rank 0 with the first batch.
    hvd.broadcast_parameters(block.collect_params(), root_rank=0, prefix=str(options))
    block(batch(0, RANK, SIZE))
    start = {name: p.data().copy() for name, p in block.collect_params().items()}
    for value in start.values():
        others = hvd.allgather_object(value.asnumpy().tobytes())
        assert set(others) == {value.asnumpy().tobytes()}
    settings = {"learning_rate": 0.1, "momentum": 0.9}
    trainer = hvd.DistributedTrainer(block.collect_params(), "sgd", settings, **options)
    trained = train(block, trainer, RANK, SIZE)
    for name, parameter in block.collect_params().items():
        parameter.set_data(start[name])
    alone = train(block, mx.gluon.Trainer(block.collect_params(), "sgd", settings), 0, 1)
    for name, value in trained.items():
        np.testing.assert_allclose(value, alone[name], rtol=1e-3, atol=1e-5)
        assert set(hvd.allgather_object(value.tobytes())) == {value.tobytes()}


def test_a_trainer_compresses_and_unwraps():
    block = network()
    block.initialize(mx.init.Constant(0.1))
    block(batch(0, RANK, SIZE))
    optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.1))
    with pytest.warns(UserWarning, match="unwrapped"):
        trainer = hvd.DistributedTrainer(
            block.collect_params(), optimizer, compression=hvd.Compression.fp16, prefix="small."
        )
    for value in train(block, trainer, RANK, SIZE).values():
        assert value.dtype == np.float32
        assert set(hvd.allgather_object(value.tobytes())) == {value.tobytes()}


def test_an_optimizer_reduces_before_it_updates():
    optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=1.0))
    assert isinstance(optimizer, mx.optimizer.Optimizer)
    assert optimizer.lr == 1.0
    assert optimizer.rescale_grad == pytest.approx(1 / SIZE)
    weights, gradients = [mx.nd.zeros(3), mx.nd.zeros(2)], [own(3), own(2)]
    for index, (weight, gradient) in enumerate(zip(weights, gradients)):
        optimizer.update(index, weight, gradient, optimizer.create_state(index, weight))
    for weight in weights:
        np.testing.assert_allclose(weight.asnumpy(), -EVERYONE.mean(), rtol=1e-6)


def test_parameters_of_modules_are_broadcast_in_place():
    params = {"b": own(3), "a": own((2, 2), "float64")}
    hvd.broadcast_parameters(params, root_rank=SIZE - 1)
    assert all((value.asnumpy() == SIZE).all() for value in params.values())
    with pytest.raises(ValueError, match="invalid params of type"):
        hvd.broadcast_parameters([own(1)])


def test_after_shutdown_calls_fail_and_the_next_world_works():
    hvd.allgather_object(None)
    hvd.shutdown()
    with pytest.raises((MXNetError, ValueError), match="Horovod has not been initialized"):
        hvd.allreduce(own(1)).asnumpy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hvd.init(process_sets="dynamic")
    assert hvd.allreduce(own(1), op=hvd.Sum).asscalar() == EVERYONE.sum()
