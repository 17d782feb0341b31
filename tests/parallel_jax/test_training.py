"""Optimizers, broadcasts of state and objects, and what happens at the end of a world."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import horovod.jax as hvd

RANK = int(os.environ.get("HOROVOD_RANK", "0"))
SIZE = int(os.environ.get("HOROVOD_SIZE", "1"))
STEPS = 4


def network(seed):
    first, second = jax.random.split(jax.random.PRNGKey(seed))
    return {
        "first": jax.random.normal(first, (6, 8)) * 0.3,
        "second": jax.random.normal(second, (8, 2)) * 0.3,
    }


def loss(params, batch):
    hidden = jnp.tanh(batch @ params["first"])
    return jnp.mean((hidden @ params["second"] - jnp.sin(batch[:, :2])) ** 2)


def train(optimizer, params, batches):
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, batch):
        updates, state = optimizer.update(jax.grad(loss)(params, batch), state, params)
        return optax.apply_updates(params, updates), state

    for batch in batches:
        params, state = step(params, state, batch)
    return params


def batches(step, rows=4):
    whole = jax.random.normal(jax.random.PRNGKey(100 + step), (rows * SIZE, 6))
    return whole, whole[rows * RANK : rows * (RANK + 1)]


def assert_close(left, right, **limits):
    for one, other in zip(jax.tree_util.tree_leaves(left), jax.tree_util.tree_leaves(right)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, **limits)


def assert_same_everywhere(tree):
    for leaf in jax.tree_util.tree_leaves(tree):
        for other in hvd.allgather_object(np.asarray(leaf).tobytes()):
            assert other == np.asarray(leaf).tobytes()


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_predivide_factor": 2.0}, {"backward_passes_per_step": 2}],
    ids=["plain", "predivided", "accumulated"],
)
def test_ranks_train_as_one(options):
    params = hvd.broadcast_parameters(network(RANK))
    assert_close(params, network(0))
    passes = options.get("backward_passes_per_step", 1)
    optimizer = hvd.DistributedOptimizer(optax.adam(0.01), **options)
    own = [batches(step)[1] for step in range(STEPS)]
    trained = train(optimizer, params, own)
    alone = optax.adam(0.01)
    if passes > 1:
        alone = optax.MultiSteps(alone, passes, use_grad_mean=False).gradient_transformation()
    expected = train(alone, network(0), [batches(step)[0] for step in range(STEPS)])
    assert_close(trained, expected)
    assert_same_everywhere(trained)


def test_a_chain_with_a_compressed_optimizer_in_it():
    inner = hvd.DistributedOptimizer(optax.sgd(0.1), compression=hvd.Compression.bf16)
    optimizer = optax.chain(optax.clip_by_global_norm(10.0), inner)
    trained = train(optimizer, network(0), [batches(step)[1] for step in range(STEPS)])
    assert_same_everywhere(trained)
    with pytest.raises(ValueError, match="gradient_predivide_factor not supported"):
        hvd.DistributedOptimizer(optax.sgd(0.1), op=hvd.Sum, gradient_predivide_factor=2.0)


def test_state_keys_and_objects_come_from_the_root():
    optimizer = optax.adam(0.1)
    state = optimizer.init(jax.tree_util.tree_map(lambda leaf: leaf * (RANK + 1), network(RANK)))
    tree = {"state": state, "key": jax.random.key(RANK), "step": 7 * RANK}
    received = hvd.broadcast_parameters(tree, SIZE - 1)
    assert received["step"] == 7 * (SIZE - 1)
    expected = jax.random.normal(jax.random.key(SIZE - 1), (3,))
    np.testing.assert_array_equal(jax.random.normal(received["key"], (3,)), expected)
    assert jax.tree_util.tree_structure(received) == jax.tree_util.tree_structure(tree)
    assert hvd.broadcast_object({"from": RANK}, SIZE - 1) == {"from": SIZE - 1}
    assert hvd.allgather_object("x" * RANK) == ["x" * rank for rank in range(SIZE)]


def test_keras_on_jax_trains_as_one():
    import keras

    import horovod.keras as hvd_keras

    keras.utils.set_random_seed(RANK)
    model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    model.build((None, 6))
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.05))
    model.compile(optimizer=optimizer, loss="mse")
    x = np.asarray(batches(0, 16)[1])
    callbacks = [
        hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd_keras.callbacks.MetricAverageCallback(),
    ]
    past = model.fit(x, x[:, :1], epochs=2, batch_size=4, verbose=0, callbacks=callbacks)
    assert past.history["loss"][1] < past.history["loss"][0]
    assert_same_everywhere([model.get_weights(), past.history["loss"]])


def test_a_compiled_program_says_when_the_world_has_ended_and_works_in_the_next():
    program = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum))
    assert program(jnp.ones(2)).tolist() == [SIZE, SIZE]
    hvd.barrier()
    hvd.shutdown()
    with pytest.raises(Exception, match="Horovod has not been initialized"):
        jax.block_until_ready(program(jnp.ones(2)))
    for call in (hvd.allreduce, jax.jit(lambda x: hvd.allreduce(x))):
        with pytest.raises(ValueError, match="Horovod has not been initialized"):
            call(jnp.ones(2))
    hvd.init(process_sets="dynamic")
    assert program(jnp.ones(2)).tolist() == [SIZE, SIZE]


def test_callbacks_of_keras_change_the_learning_rate_during_training():
    import keras

    import horovod.keras as hvd_keras

    model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1, use_bias=False)])
    model.layers[-1].set_weights([np.zeros([1, 1])])
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.5)), "mae")
    # The slope is -1 throughout; the rate is halved before the second epoch, momentum and all.
    schedule = hvd_keras.callbacks.LearningRateScheduleCallback(0.1, 0.5, steps_per_epoch=1)
    inputs, targets = np.ones([2, 1]), np.full([2, 1], 9.0)
    model.fit(inputs, targets, 2, 2, verbose=0, callbacks=[schedule])
    assert np.isclose(model.get_weights()[0].item(), 0.1 + 0.5 * (0.1 * 0.5) + 0.05)
