"""Features of MXNet only: an engine that waits and fails later, optimizers, trainers."""

import os

import mxnet as mx
import numpy as np
import pytest
from mxnet.base import MXNetError

import horovod.mxnet as hvd

RANK = int(os.environ.get("HOROVOD_RANK", "0"))
SIZE = int(os.environ.get("HOROVOD_SIZE", "1"))
EVERYONE = np.arange(1, SIZE + 1)


def own(shape, dtype="float32"):
    return mx.nd.ones(shape, dtype=dtype) * (RANK + 1)


def test_computation_waits_only_for_the_reductions_it_uses():
    # The order differs between ranks: operations are matched by name.
    order = range(100) if RANK % 2 else range(99, -1, -1)
    tensors = [own(50_000) * (number + 1) for number in range(100)]
    for number in order:
        hvd.allreduce_(tensors[number], op=hvd.Sum, name=f"flight.{number}")
    for number, tensor in enumerate(tensors):
        assert ((tensor * 2).asnumpy() == 2 * (number + 1) * EVERYONE.sum()).all()


def test_errors_are_raised_where_the_result_is_used():
    result = hvd.allreduce(mx.nd.ones(RANK + 1), name="mismatch")
    with pytest.raises(MXNetError, match="Mismatched ALLREDUCE tensor shapes"):
        result.asnumpy()
    # Calls that wait for other ranks raise at once, with the classes of the other frameworks.
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched ALLGATHER tensor shapes"):
        hvd.allgather(mx.nd.ones([1, RANK + 1]))
    with pytest.raises(ValueError, match="splits not provided"):
        hvd.alltoall(mx.nd.ones(SIZE + 1))
    with mx.util.np_shape(True), pytest.raises(ValueError, match="scalar"):
        hvd.reducescatter(mx.nd.ones(()))


def test_unsupported_arguments_are_rejected():
    with pytest.raises(AssertionError, match="Adasum is not available for MXNet"):
        hvd.allreduce(own(4), op=hvd.Adasum)
    with pytest.raises(ValueError, match="stored as `row_sparse`"):
        hvd.allreduce(mx.nd.sparse.zeros("row_sparse", (2, 2)))
    for wrong in (np.ones(2), [1.0], None):
        with pytest.raises(TypeError, match="not an MXNet array"):
            hvd.allreduce(wrong)
    for wrong in ("sgd", None):
        with pytest.raises(ValueError, match="is not an optimizer of MXNet"):
            hvd.DistributedOptimizer(wrong)


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
    # Shapes are not known yet: the parameters are broadcast with the first batch.
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
