"""`model.fit` and everything around it, with TensorFlow's Keras and standalone Keras."""

import functools
import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd_tf

MODULES = ["horovod.tensorflow.keras", "horovod.keras"]


@pytest.fixture(params=MODULES)
def hvd(request):
    return importlib.import_module(request.param)


@pytest.fixture
def kit(hvd):
    return tf.keras if hvd.__name__ == MODULES[0] else keras


def data():
    random = np.random.RandomState(hvd_tf.rank())
    inputs = random.rand(32, 4).astype(np.float32)
    return inputs, inputs.sum(axis=1, keepdims=True)


def model_of(kit, start):
    model = kit.Sequential([kit.layers.Input([4]), kit.layers.Dense(3), kit.layers.Dense(1)])
    for variable in model.trainable_variables:
        variable.assign(np.full(variable.shape, start, np.float32))
    return model


def equal_everywhere(model):
    for weights in model.get_weights():
        every = hvd_tf.allgather(weights.reshape(1, -1)).numpy()
        assert np.array_equal(every, np.repeat(every[:1], hvd_tf.size(), axis=0))


def test_fit_makes_the_same_model_on_all_ranks(hvd, kit):
    model = model_of(kit, 0.1 * (hvd.rank() + 1))
    optimizer = hvd.DistributedOptimizer(kit.optimizers.Adam(0.01 * hvd.size()))
    assert type(optimizer).__name__ == "Adam"
    model.compile(optimizer, "mse", metrics=["mae"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.01 * hvd.size(), warmup_epochs=2),
    ]
    history = model.fit(*data(), epochs=3, batch_size=8, verbose=0, callbacks=callbacks).history
    equal_everywhere(model)
    assert history["loss"][-1] < history["loss"][0]
    for losses in (history["loss"], history["mae"]):
        assert len(set(hvd_tf.allgather_object(tuple(losses)))) == 1
    assert np.isclose(history["lr"][1], 0.01 * hvd.size())


def test_a_saved_model_holds_the_plain_optimizer_and_loads_both_ways(hvd, kit, tmp_path):
    model = model_of(kit, 0.1)
    model.compile(hvd.DistributedOptimizer(kit.optimizers.SGD(0.1, momentum=0.9)), "mse")
    model.fit(*data(), epochs=1, batch_size=8, verbose=0)
    path = tmp_path / "model.keras"
    model.save(path)
    plain = kit.models.load_model(path)
    assert type(plain.optimizer) is kit.optimizers.SGD
    again = hvd.load_model(path)
    assert isinstance(again.optimizer, kit.optimizers.SGD)
    assert int(again.optimizer.iterations.numpy()) == 4
    again.fit(*data(), epochs=1, batch_size=8, verbose=0)
    equal_everywhere(again)
    plain.fit(*data(), epochs=1, batch_size=8, verbose=0)
    first = plain.get_weights()[0].reshape(1, -1)
    every = hvd_tf.allgather(first).numpy()
    assert not np.array_equal(every[0], every[1])


def apply_one(optimizer, variable, gradient):
    optimizer.apply_gradients([(gradient, variable)])


def test_several_passes_are_added_up_before_they_are_applied():
    hvd = importlib.import_module(MODULES[0])
    for average in (False, True):
        optimizer = hvd.DistributedOptimizer(
            tf.keras.optimizers.SGD(1.0),
            backward_passes_per_step=2,
            average_aggregated_gradients=average,
        )
        kept = getattr(tf.keras, "Variable", tf.Variable)(0.0)

        step = tf.function(functools.partial(apply_one, optimizer, kept))
        mean = sum(rank + 1 for rank in range(hvd.size())) / hvd.size()
        step(tf.constant(float(hvd.rank() + 1)))
        assert float(kept.numpy()) == 0.0 and int(optimizer._agg_helper.counter.numpy()) == 1
        step(tf.constant(float(hvd.rank() + 2)))
        expected = -(2 * mean + 1) / (2 if average else 1)
        assert np.isclose(float(kept.numpy()), expected)
        # Every pass counts, so that learning-rate schedules advance as in Horovod.
        assert int(optimizer.iterations.numpy()) == 2
        assert len(optimizer.variables()) == len(list(optimizer.variables))


def test_a_gradient_that_overflows_on_one_rank_is_skipped_by_all():
    """The loss-scaling optimizer may wrap the reducing one, or be wrapped by it."""
    hvd = importlib.import_module(MODULES[0])
    scaled = functools.partial(tf.keras.mixed_precision.LossScaleOptimizer, initial_scale=2.0)
    kinds = [tf.keras.optimizers.SGD]
    if not hasattr(tf.keras, "ops"):
        kinds.append(tf.keras.optimizers.legacy.SGD)
    for kind in kinds:
        around = scaled(hvd.DistributedOptimizer(kind(1.0)))
        within = hvd.DistributedOptimizer(scaled(kind(1.0)))
        for optimizer in (around, within):
            kept = getattr(tf.keras, "Variable", tf.Variable)(0.0)
            step = tf.function(functools.partial(apply_one, optimizer, kept))
            step(tf.constant(float("inf") if hvd.rank() == 0 else 1.0))
            assert float(kept.numpy()) == 0.0
            step(tf.constant(float(hvd.rank() + 1)))
            # By now the scale has dropped to one on all ranks.
            assert np.isclose(float(kept.numpy()), -(hvd.size() + 1) / 2)


def loss_of(variable, slope):
    return lambda: variable * slope


def traced(step):
    @tf.function
    def run(loss, variable):
        step(loss, variable)

    return run


def keras_2_variants(optimizer, skip):
    """Every way in which programs for Keras 2 step, as functions of a loss and a variable."""

    def changed(pairs):
        return [(gradient * 1.0, variable) for gradient, variable in pairs]

    def taped(loss, variable):
        with tf.GradientTape() as tape:
            value = loss()
        return [(tape.gradient(value, variable), variable)]

    def with_distributed_tape(loss, variable):
        with tf.GradientTape() as tape:
            value = loss()
        tape = hvd_tf.DistributedGradientTape(tape, op=optimizer._hvd.reducer.op)
        optimizer.minimize(value, [variable], tape=tape)

    def twice(loss, variable):
        first = optimizer.compute_gradients(loss, [variable])
        second = optimizer.compute_gradients(loss, [variable])
        optimizer.apply_gradients([(0.5 * (first[0][0] + second[0][0]), variable)], **skip)

    apply, compute = optimizer.apply_gradients, optimizer.compute_gradients
    private, aggregate = optimizer._compute_gradients, optimizer._aggregate_gradients
    return {
        "minimize": lambda loss, v: optimizer.minimize(loss, [v]),
        "computed": lambda loss, v: apply(compute(loss, [v])),
        "computed, skip": lambda loss, v: apply(compute(loss, [v]), **skip),
        "computed, changed": lambda loss, v: apply(changed(compute(loss, [v]))),
        "computed, changed, skip": lambda loss, v: apply(changed(compute(loss, [v])), **skip),
        "privately computed": lambda loss, v: apply(private(loss, [v]), **skip),
        "of a tape": lambda loss, v: apply(taped(loss, v)),
        "aggregated": lambda loss, v: apply(changed(aggregate(taped(loss, v))), **skip),
        "of a distributed tape": with_distributed_tape,
        "computed twice": twice,
    }


@pytest.mark.skipif(hasattr(tf.keras, "ops"), reason="Keras 3 has only one way")
def test_keras_2_always_steps_on_reduced_gradients():
    hvd = importlib.import_module(MODULES[0])
    own = float(hvd.rank() + 1)
    mean = (hvd.size() + 1) / 2
    newer, older = tf.keras.optimizers.SGD, tf.keras.optimizers.legacy.SGD
    skips = {
        newer: {"skip_gradients_aggregation": True},
        older: {"experimental_aggregate_gradients": False},
    }
    for kind, skip in skips.items():
        for op in (hvd.Average, hvd.Sum):
            optimizer = hvd.DistributedOptimizer(kind(1.0), op=op)
            variable = tf.Variable(0.0)
            expected = -mean * (hvd.size() if op == hvd.Sum else 1)
            for variant, step in keras_2_variants(optimizer, skip).items():
                # A sum shows what is reduced twice; tracing is slow.
                for run in (step, traced(step)) if op == hvd.Sum else (step,):
                    variable.assign(0.0)
                    run(loss_of(variable, own), variable)
                    assert np.isclose(variable.numpy(), expected), (kind, op, variant)
            # A false claim that gradients are aggregated does not make the ranks diverge.
            variable.assign(0.0)
            optimizer.apply_gradients([(tf.constant(own), variable)], **skip)
            assert np.isclose(variable.numpy(), -mean)
    optimizers = [hvd.DistributedOptimizer(kind(1.0), op=hvd.Sum) for kind in skips]
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("v", initializer=0.0)
        for optimizer in optimizers:
            gradients = optimizer.get_gradients(variable * own, [variable])
            with tf.compat.v1.Session() as session:
                assert session.run(gradients) == [mean * hvd.size()]


@pytest.mark.skipif(hasattr(tf.keras, "ops"), reason="Keras 3 reduces in only one place")
def test_scaled_losses_of_keras_2_are_reduced_once():
    hvd = importlib.import_module(MODULES[0])
    own = float(hvd.rank() + 1)
    total = sum(rank + 1 for rank in range(hvd.size()))
    for kind in (tf.keras.optimizers.SGD, tf.keras.optimizers.legacy.SGD):
        reducing = hvd.DistributedOptimizer(kind(1.0), op=hvd.Sum)
        optimizer = tf.keras.mixed_precision.LossScaleOptimizer(reducing, initial_scale=4.0)
        averaged = []
        reducing._hvd.reducer.averaged = lambda *given, kept=averaged: kept.append(given)
        variable = tf.Variable(0.0)
        for step in (1, 2):
            optimizer.minimize(loss_of(variable, own), [variable])
            assert np.isclose(variable.numpy(), -step * total)
        # Nothing was reduced twice.
        assert averaged == []


def test_local_variables_are_neither_reduced_nor_broadcast():
    import horovod.keras as hvd

    model = model_of(keras, float(hvd.rank() + 1))
    local, shared = model.layers[0], model.layers[1]
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.001), local_layers=[local], scale_local_gradients=False
    )
    model.compile(optimizer, "mse")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(
        0, local_variables=list(local.trainable_variables)
    )
    model.fit(*data(), epochs=1, batch_size=16, verbose=0, callbacks=[callback])
    every = hvd_tf.allgather(shared.get_weights()[0].reshape(1, -1)).numpy()
    assert np.array_equal(every[0], every[-1])
    every = hvd_tf.allgather(local.get_weights()[0].reshape(1, -1)).numpy()
    assert not np.array_equal(every[0], every[-1])


def test_plain_values(hvd):
    total = sum(range(hvd.size()))
    # Plain values become tensors, and compression applies to them.
    narrow = hvd.allreduce(np.float32(1.0001), compression=hvd.Compression.fp16)
    assert narrow.numpy() == 1.0
    logs = {"vector": np.array([hvd.rank(), 1]), "text": "as it is", "number": hvd.rank()}
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    assert logs["vector"].tolist() == [total / hvd.size(), 1.0] and logs["text"] == "as it is"
    assert logs["number"] == total / hvd.size()
    assert np.allclose(hvd.allreduce([float(hvd.rank())]), total / hvd.size())
    assert np.allclose(hvd.allreduce([hvd.rank()], average=None, op=hvd.Sum), total)
    assert np.array_equal(hvd.allgather([hvd.rank()]), range(hvd.size()))
    assert np.array_equal(hvd.broadcast([hvd.rank()], 1), [1])
    rows = np.ones([hvd.size(), 2], np.float32)
    assert np.array_equal(hvd.reducescatter(rows, op=hvd.Sum), [[hvd.size()] * 2])


def test_optimizers_and_callbacks_reject_wrong_arguments(hvd, kit):
    with pytest.raises(ValueError, match="only supports Average and Sum"):
        hvd.DistributedOptimizer(kit.optimizers.SGD(), op=hvd_tf.Adasum)
    wrapped = hvd.DistributedOptimizer(kit.optimizers.SGD())
    with pytest.raises(ValueError, match="wrapped before"):
        hvd.DistributedOptimizer(wrapped)
    for wrong in ("sgd", None, kit.optimizers.SGD):
        with pytest.raises(ValueError, match="is not an optimizer of"):
            hvd.DistributedOptimizer(wrong)
    with pytest.raises(ValueError, match="compression is 'fp16'"):
        hvd.DistributedOptimizer(kit.optimizers.SGD(), compression="fp16")
    with pytest.raises(ValueError, match="does not know where to save"):
        hvd.callbacks.BestModelCheckpoint().on_train_begin()
    with pytest.raises(ValueError, match="initial_lr"):
        hvd.callbacks.LearningRateScheduleCallback(None, 1.0)
    with pytest.raises(ValueError, match="All local variables"):
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[1])


def test_learning_rates_follow_the_schedule(hvd, kit):
    model = model_of(kit, 0.1)
    model.compile(hvd.DistributedOptimizer(kit.optimizers.SGD(0.5)), "mse")
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.5, 0.1, start_epoch=1)
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    assert best.filepath is None and best.save_best_only
    history = model.fit(*data(), epochs=3, batch_size=16, verbose=0, callbacks=[schedule]).history
    assert np.allclose(history["lr"], [0.5, 0.5, 0.05])
    # In TensorFlow 1 graphs, Keras 2 reports the number of samples instead of steps.
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.5)
    warmup.set_params({"steps": None, "samples": 32, "batch_size": 8})
    warmup.on_train_begin()
    assert warmup.steps_per_epoch == 4


def test_a_new_learning_rate_corrects_the_momentum(hvd, kit):
    model = kit.Sequential([kit.layers.Input([1]), kit.layers.Dense(1, use_bias=False)])
    model.layers[-1].set_weights([np.zeros([1, 1])])
    model.compile(hvd.DistributedOptimizer(kit.optimizers.SGD(0.1, momentum=0.5)), "mae")
    # The slope is always -1, and the rate is halved before the second epoch; an epoch is one batch.
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5, steps_per_epoch=1)
    model.fit(np.ones([2, 1]), np.full([2, 1], 9.0), 2, 2, verbose=0, callbacks=[schedule])
    velocity = 0.5 * (0.1 * 0.5) + 0.05
    assert np.isclose(model.get_weights()[0].item(), 0.1 + velocity)


@pytest.mark.skipif(not hasattr(keras, "ops"), reason="Keras 2 keeps its generators elsewhere")
def test_integer_variables_are_sent_but_generators_keep_their_state():
    import horovod.keras as hvd

    model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dropout(0.5)])
    model.add(keras.layers.Dense(1))
    model.mark = keras.Variable(np.array([hvd.rank()], np.uint32), dtype="uint32", trainable=False)
    seed = next(each for each in model.variables if "seed_generator" in each.path)
    seed.assign(np.array([hvd.rank(), 0], np.uint32))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1)
    callback.set_model(model)
    callback.on_batch_end(0)
    assert seed.numpy().tolist() == [hvd.rank(), 0]
    assert any(model.mark is each for each in model.variables)
    assert model.mark.numpy().tolist() == [1]
