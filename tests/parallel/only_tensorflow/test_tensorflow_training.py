"""Tapes, optimizers of TensorFlow 1, and batch normalization over all ranks."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd


def shared_mean():
    return sum(rank + 1 for rank in range(hvd.size())) / hvd.size()


def test_a_tape_gives_the_average_gradient_eagerly_and_traced():
    variables = [tf.Variable([1.0, 2.0]), tf.Variable(3.0), tf.Variable(1.0)]

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(variables[0] * variables[1]) * float(hvd.rank() + 1)
        return tape.gradient(loss, {"a": variables[0], "b": [variables[1]], "unused": variables[2]})

    for way in (step, tf.function(step)):
        found = way()
        assert np.allclose(found["a"], 3.0 * shared_mean())
        assert np.allclose(found["b"][0], 3.0 * shared_mean())
        assert found["unused"] is None


@pytest.mark.parametrize("groups", [2, "explicit"])
def test_gradients_in_groups(groups):
    variables = [tf.Variable(float(number)) for number in range(5)]
    if groups == "explicit":
        groups = [[variables[3], variables[0]], [variables[1]]]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            terms = [variable * float(hvd.rank() + 1 + n) for n, variable in enumerate(variables)]
            loss = tf.add_n(terms)
        return hvd.DistributedGradientTape(tape, groups=groups).gradient(loss, variables)

    assert np.allclose(step(), [shared_mean() + number for number in range(5)])
    with pytest.raises(ValueError, match="groups should be"):
        hvd.DistributedGradientTape(tf.GradientTape(), groups=-1)


def test_sparse_gradients_compression_and_factors():
    table = tf.Variable(tf.ones([4, 2]))
    for options in (
        {},
        {"sparse_as_dense": True},
        {"compression": hvd.Compression.fp16},
        {"gradient_predivide_factor": 2.0, "sparse_as_dense": True},
    ):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [hvd.rank() % 4])) * 2.0
        found = hvd.DistributedGradientTape(tape, **options).gradient(loss, table)
        sparse = isinstance(found, tf.IndexedSlices)
        assert sparse == ("sparse_as_dense" not in options)
        expected = np.zeros([4, 2])
        for rank in range(hvd.size()):
            expected[rank % 4] += 2.0 / hvd.size()
        assert np.allclose(tf.convert_to_tensor(found), expected)
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedGradientTape(tape, op=hvd.Sum, gradient_predivide_factor=2.0)


def test_tapes_and_optimizers_that_cannot_be_wrapped():
    one, other = tf.Variable(1.0), tf.Variable(1.0)
    with tf.GradientTape(persistent=True) as tape:
        loss = one * float(hvd.rank() + 1)
    wrapped = hvd.DistributedGradientTape(tape)
    zero = tf.UnconnectedGradients.ZERO
    found = wrapped.gradient(loss, [one, other], unconnected_gradients=zero)
    assert [each.numpy() for each in found] == [shared_mean(), 0.0]
    with pytest.raises(NotImplementedError, match="does not compute Jacobians"):
        wrapped.jacobian(loss, one)
    with pytest.raises(ValueError, match="wrapped before"):
        hvd.DistributedGradientTape(wrapped)
    with pytest.raises(ValueError, match="gradtape is None; pass"):
        hvd.DistributedGradientTape(None)
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer())
    with pytest.raises(ValueError, match="wrapped before"):
        hvd.DistributedOptimizer(optimizer)


def test_local_variables_and_layers_keep_their_gradients():
    local, shared = tf.keras.layers.Dense(1), tf.keras.layers.Dense(1)
    inputs = tf.ones([1, 2])
    local(inputs), shared(inputs)
    for scale in (True, False):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(local(inputs) + shared(inputs)) * float(hvd.rank() + 1)
        tape = hvd.PartialDistributedGradientTape(
            tape, local_layers=local, scale_local_gradients=scale
        )
        sources = [local.trainable_variables[0], shared.trainable_variables[0]]
        mine, all_ranks = tape.gradient(loss, sources)
        assert np.allclose(mine, (hvd.rank() + 1) / (hvd.size() if scale else 1))
        assert np.allclose(all_ranks, shared_mean())
    with pytest.raises(ValueError, match="All local layers"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=["no layer"])


def test_optimizers_of_tensorflow_1_with_and_without_several_passes():
    for passes, average in ((1, False), (2, False), (2, True)):
        with tf.Graph().as_default():
            variable = tf.compat.v1.get_variable("v", initializer=0.0)
            slope = tf.compat.v1.placeholder(tf.float32, [])
            optimizer = hvd.DistributedOptimizer(
                tf.compat.v1.train.GradientDescentOptimizer(1.0),
                backward_passes_per_step=passes,
                average_aggregated_gradients=average,
            )
            train = optimizer.minimize(variable * slope)
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                for number in range(passes):
                    assert session.run(variable) == 0.0
                    session.run(train, {slope: float(hvd.rank() + 1 + number)})
                total = sum(shared_mean() + number for number in range(passes))
                expected = -total / (passes if average else 1)
                assert np.isclose(session.run(variable), expected)
    with pytest.raises(ValueError, match="Adasum does not support"):
        hvd.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(1.0),
            op=hvd.Adasum,
            average_aggregated_gradients=True,
        )


def test_optimizers_of_tensorflow_1_never_apply_unreduced_gradients():
    for op in (hvd.Average, hvd.Sum):
        total = shared_mean() * (hvd.size() if op == hvd.Sum else 1)
        plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        optimizer = hvd.DistributedOptimizer(plain, op=op)
        own, variable = tf.constant(float(hvd.rank() + 1)), tf.Variable(0.0)
        # Gradients that a program has reduced and clipped are not reduced again.
        loss = functools.partial(tf.multiply, variable, own)
        computed = optimizer.compute_gradients(loss, [variable])
        optimizer.apply_gradients([(gradient * 1.0, each) for gradient, each in computed])
        assert np.isclose(variable.numpy(), -total)
        optimizer.apply_gradients([(hvd.allreduce(own, op=op), variable)])
        assert np.isclose(variable.numpy(), -2 * total)
        # Unreduced gradients do not make the ranks diverge.
        optimizer.apply_gradients([(own, variable)])
        assert np.isclose(variable.numpy(), -2 * total - shared_mean())


def test_adasum_reduces_dense_gradients():
    variable = tf.Variable(tf.ones([4]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable) * 2.0
    found = hvd.DistributedGradientTape(tape, op=hvd.Adasum).gradient(loss, variable)
    assert np.allclose(found, 2.0)


def test_batch_normalization_sees_the_batches_of_all_ranks():
    everything = np.random.RandomState(3).rand(hvd.size() * 4, 3).astype(np.float32)
    own = everything[hvd.rank() * 4 : hvd.rank() * 4 + 4]
    synced = hvd.SyncBatchNormalization()
    whole = tf.keras.layers.BatchNormalization()
    output, expected = synced(own, training=True), whole(everything, training=True)
    assert np.allclose(output, expected[hvd.rank() * 4 : hvd.rank() * 4 + 4], atol=1e-4)
    assert np.allclose(synced.moving_mean, whole.moving_mean, atol=1e-5)
    assert np.allclose(synced.moving_variance, whole.moving_variance, atol=1e-5)
    assert synced.name.startswith("sync_batch_normalization")
    with pytest.raises(ValueError, match="fused=True"):
        hvd.SyncBatchNormalization(fused=True)


def test_other_frameworks_in_the_process_share_the_engine():
    # `make matrix` installs only TensorFlow.
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")

    import horovod.jax as hvd_jax
    import horovod.torch as hvd_torch

    hvd_torch.init()
    hvd_jax.init()
    total = float(sum(range(hvd.size())))
    own = np.full([3], float(hvd.rank()), np.float32)
    compiled = jax.jit(lambda value: hvd_jax.allreduce(value, hvd.Sum))
    for _ in range(2):
        late = hvd_torch.allreduce_async(torch.tensor(own), op=hvd.Sum, name="shared")
        assert np.all(hvd.allreduce(own, op=hvd.Sum).numpy() == total)
        assert np.all(np.asarray(compiled(own)) == total)
        assert np.all(hvd_torch.synchronize(late).numpy() == total)
