"""The collectives in functions that XLA compiles."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import horovod.keras as hvd_keras
import horovod.tensorflow as hvd
from horovod import _native

pytestmark = pytest.mark.skipif(
    _native.tensorflow_xla_problem() is not None,
    reason="this TensorFlow does not support custom handlers",
)


def compiled(function):
    return tf.function(function, jit_compile=True, autograph=False)


def ranks():
    return range(hvd.size())


def test_reductions_of_many_types_in_one_call():
    types = ["uint8", "int32", "uint32", "int64", "float16", "bfloat16", "float32", "float64"]

    @compiled
    def reduce(value):
        tensors = [tf.cast(value, dtype) + 1 for dtype in types]
        scaled = hvd.allreduce(value, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        return hvd.grouped_allreduce(tensors, op=hvd.Sum), scaled, hvd.allreduce(value)

    own = tf.ones([3, 2]) * (hvd.rank() + 1)
    total = sum(rank + 1 for rank in ranks())
    for _ in range(2):
        sums, scaled, mean = reduce(own)
        for dtype, reduced in zip(types, sums):
            assert reduced.dtype == dtype and reduced.shape == [3, 2]
            assert np.all(tf.cast(reduced, tf.int64) == total + hvd.size())
        assert np.all(scaled == 2.0 * total) and np.allclose(mean, total / hvd.size())


def collectives():
    return {
        "allreduce": lambda value: hvd.allreduce(value, op=hvd.Sum, prescale_factor=0.5),
        "allgather": hvd.allgather,
        "broadcast": lambda value: hvd.broadcast(value, 1),
        "alltoall": hvd.alltoall,
        "reducescatter": lambda value: hvd.reducescatter(value, op=hvd.Sum),
        "group": lambda value: hvd.grouped_allgather([value, 2 * value])[1],
    }


@pytest.mark.parametrize("kind", collectives())
def test_results_and_gradients_match_those_of_uncompiled_functions(kind):
    function = collectives()[kind]

    def run(value, function=function):
        with tf.GradientTape() as tape:
            tape.watch(value)
            result = function(value)
            loss = tf.reduce_sum(result * tf.square(float(hvd.rank() + 2)))
        return result, tape.gradient(loss, value)

    size = 2 * hvd.size()
    own = tf.reshape(tf.range(3.0 * size), [size, 3]) + float(hvd.rank())
    expected, slope = run(own)
    result, found = compiled(run)(own)
    assert np.allclose(result, expected) and np.allclose(found, slope)
    _, outside = run(own, compiled(function))
    assert np.allclose(outside, slope)


def test_calls_in_one_program_have_one_order():
    @compiled
    def step(value):
        reduced = [hvd.allreduce(value + float(number), op=hvd.Sum) for number in range(8)]
        if hvd.rank() == 0:
            # A rank that computes more may schedule its calls differently.
            reduced = [tf.cos(tf.sin(each)) * 0.0 + each for each in reduced]
        return reduced

    for size in (3, 100_000):
        for number, result in enumerate(step(tf.zeros([size]))):
            assert np.all(result == number * hvd.size())


def test_loops_and_process_sets():
    alone = hvd.add_process_set([1])
    total = float(hvd.size())

    @compiled
    def loop(value):
        def body(count, value):
            return count + 1, hvd.allreduce(value, op=hvd.Sum, name="looped")

        value = tf.while_loop(lambda count, _: count < 3, body, [0, value])[1]
        if hvd.rank() == 1:
            value = hvd.allreduce(value, op=hvd.Sum, process_set=alone)
        return value

    assert np.all(loop(tf.ones([2])) == total**3)
    hvd.remove_process_set(alone)


def test_calls_that_cannot_be_compiled_raise_an_error_with_advice():
    spec = [tf.TensorSpec([None, 2])]
    with pytest.raises(ValueError, match="full shape must be known"):
        tf.function(hvd.allgather, jit_compile=True, input_signature=spec)(tf.ones([2, 2]))
    for function in (
        lambda value: hvd.alltoall(value, splits=[1] * hvd.size()),
        lambda value: hvd.join(),
        lambda value: hvd.rank_op(),
    ):
        with pytest.raises(NotImplementedError, match="jit_compile=False"):
            compiled(function)(tf.ones([4]))
    with pytest.raises(tf.errors.FailedPreconditionError, match="Mismatched ALLREDUCE"):
        compiled(hvd.allreduce)(tf.ones([2 + hvd.rank()]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="expects"):
        compiled(hvd.allgather)(tf.ones([2 + (hvd.rank() == 0)]))


def test_fit_with_a_compiled_step():
    random = np.random.RandomState(hvd.rank())
    inputs = random.rand(32, 4).astype(np.float32)
    model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(1)])
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.05 * (hvd.rank() + 1)))
    model.compile(optimizer, "mse", jit_compile=True)
    callback = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    targets = inputs.sum(axis=1, keepdims=True)
    losses = model.fit(inputs, targets, epochs=3, batch_size=8, verbose=0, callbacks=[callback])
    assert losses.history["loss"][-1] < losses.history["loss"][0]
    weights = model.get_weights()[0].reshape(1, -1)
    every = hvd.allgather(weights).numpy()
    assert np.array_equal(every, np.repeat(every[:1], hvd.size(), axis=0))
