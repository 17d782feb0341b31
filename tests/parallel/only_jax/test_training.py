"""Optimizers, broadcasts of state and objects, and the end of a world."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import horovod.jax as hvd
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

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


def train_plainly(optimizer, params, batches):
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
    trained = train_plainly(optimizer, params, own)
    alone = optax.adam(0.01)
    if passes > 1:
        alone = optax.MultiSteps(alone, passes, use_grad_mean=False).gradient_transformation()
    expected = train_plainly(alone, network(0), [batches(step)[0] for step in range(STEPS)])
    assert_close(trained, expected)
    assert_same_everywhere(trained)


def test_a_chain_with_a_compressed_optimizer_in_it():
    inner = hvd.DistributedOptimizer(optax.sgd(0.1), compression=hvd.Compression.bf16)
    optimizer = optax.chain(optax.clip_by_global_norm(10.0), inner)
    trained = train_plainly(optimizer, network(0), [batches(step)[1] for step in range(STEPS)])
    assert_same_everywhere(trained)
    with pytest.raises(ValueError, match="gradient_predivide_factor not supported"):
        hvd.DistributedOptimizer(optax.sgd(0.1), op=hvd.Sum, gradient_predivide_factor=2.0)


def test_an_optimizer_must_come_from_optax_and_only_members_of_its_set_reduce():
    for wrong in ("adam", optax.adam):
        with pytest.raises(ValueError, match="not a gradient transformation"):
            hvd.DistributedOptimizer(wrong)
    first = hvd.add_process_set([0])
    optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), process_set=first)
    updates, _ = optimizer.update(jnp.ones(1) * (RANK + 1), optimizer.init(jnp.ones(1)))
    assert updates.tolist() == [-(RANK + 1)]
    hvd.barrier()
    hvd.remove_process_set(first)


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


def test_keras_on_jax_skips_a_step_that_overflows_anywhere():
    import keras

    import horovod.keras as hvd_keras

    def around():
        return hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.05))

    def within():
        scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05))
        return hvd_keras.DistributedOptimizer(scaling)

    # So small that only the intended step overflows, in whatever order XLA adds up.
    x = 0.1 * np.array(batches(0, 16)[1])
    if RANK == 0:
        x[:4] = 60000.0
    for make in (around, within):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Dense(1, dtype="mixed_float16")])
        model.build((None, 6))
        model.dtype_policy = "mixed_float16"
        model.compile(optimizer=make(), loss="mse")
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        model.fit(x, x[:, :1], epochs=2, batch_size=4, shuffle=False, verbose=0)
        assert_same_everywhere([model.get_weights(), [np.asarray(model.optimizer.dynamic_scale)]])
        assert int(model.optimizer.iterations) == 6 and np.isfinite(model.get_weights()[0]).all()


def test_trees_outlive_their_world():
    """Arrays are donated, so state must be copied; a compiled program detects a lost rank."""
    optimizer = hvd.DistributedOptimizer(optax.adam(0.01))

    def step(params, state, batch):
        updates, state = optimizer.update(jax.grad(loss)(params, batch), state, params)
        return optax.apply_updates(params, updates), state

    step = jax.jit(step, donate_argnums=(0, 1))
    params = network(RANK)
    errors = {3: HorovodInternalError("a rank leaves"), 5: HostsUpdatedInterrupt()}

    @hvd.elastic.run
    def train(state):
        while state.step < 6:
            own = batches(state.step)[1]
            state.params, state.optimizer = step(state.params, state.optimizer, own)
            state.key = jax.random.fold_in(state.key, state.step)
            state.step += 1
            if state.step % 2 == 0:
                state.commit()
            if state.step in errors:
                error = errors.pop(state.step)
                # The others learn of a loss in the middle of their next step.
                if RANK == 0 or isinstance(error, HostsUpdatedInterrupt):
                    jax.block_until_ready(state.params)
                    raise error

    state = hvd.elastic.JaxState(
        params=params, optimizer=optimizer.init(params), key=jax.random.key(RANK), step=0
    )
    train(state)
    assert_same_everywhere([state.params, state.optimizer, jax.random.key_data(state.key)])
    expected = train_plainly(optax.adam(0.01), network(0), [batches(i)[0] for i in range(6)])
    assert_close(state.params, expected)


def test_keras_on_jax_resumes_where_it_was_interrupted():
    import keras

    import horovod.keras as hvd_keras

    keras.utils.set_random_seed(RANK)
    model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    model.build((None, 6))
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
    model.compile(optimizer=optimizer, loss="mse")
    x = np.asarray(batches(0, 16)[1])
    seen = []

    class Interruption(keras.callbacks.Callback):
        def on_batch_end(self, batch, logs=None):
            seen.append((state.epoch, state.batch))
            if seen.count((1, 2)) == 1 and seen[-1] == (1, 2):
                if RANK == 0:
                    raise HorovodInternalError("a rank leaves")
            elif seen.count((2, 2)) == 1 and seen[-1] == (2, 2):
                raise HostsUpdatedInterrupt

    @hvd_keras.elastic.run
    def train(state):
        callbacks = [
            hvd_keras.elastic.UpdateEpochStateCallback(state),
            hvd_keras.elastic.UpdateBatchStateCallback(state),
            Interruption(),
            hvd_keras.elastic.CommitStateCallback(state, batches_per_commit=4),
        ]
        how = {"batch_size": 4, "epochs": 4 - state.epoch, "shuffle": False, "verbose": 0}
        model.fit(x, x[:, :1], callbacks=callbacks, **how)

    state = hvd_keras.elastic.KerasState(model, epoch=0, batch=0)
    train(state)
    assert_same_everywhere(model.get_weights())
    whole = [(epoch, batch) for epoch in range(4) for batch in range(1, 5)]
    # Other ranks continue for some batches, because JAX reports failures later.
    assert RANK > 0 or seen == whole[:6] + whole[4:]
    assert seen[-10:] == whole[-10:] and int(np.array(optimizer.iterations)) == 16


def test_a_compiled_program_fails_after_the_world_has_ended_and_works_in_the_next_one():
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


def test_keras_callbacks_change_the_learning_rate_during_training():
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


def test_keras_reads_values_that_numpy_cannot(monkeypatch):
    import keras

    import horovod.keras as hvd_keras

    class OnGpu:
        """Like a tensor of torch on a GPU."""

        def __init__(self, value):
            self.value = value

        def __array__(self, *_, **__):
            raise TypeError("copy it to host memory first")

    monkeypatch.setattr(keras.ops, "convert_to_numpy", lambda tensor: np.array(tensor.value))
    value = OnGpu([RANK + 1.0] * SIZE)
    total = SIZE * (SIZE + 1) / 2
    assert hvd_keras.allreduce(value, average=None, op=hvd_keras.Sum).tolist() == [total] * SIZE
    assert hvd_keras.broadcast(value, SIZE - 1).tolist() == [SIZE] * SIZE
    assert len(hvd_keras.allgather(value)) == SIZE**2
    assert hvd_keras.reducescatter(value, op=hvd_keras.Sum).tolist() == [total]
