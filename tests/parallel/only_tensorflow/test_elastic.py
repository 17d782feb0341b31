"""States of TensorFlow and Keras on several ranks: new ranks, losses, interrupted epochs."""

import importlib
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod import _native
from horovod.common.elastic import HostUpdateResult
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

MODULES = ["horovod.tensorflow.keras", "horovod.keras"]


@pytest.fixture(autouse=True)
def _growing(monkeypatch):
    """Makes the world elastic, so graphs must not assume a fixed number of ranks."""
    monkeypatch.setattr(_native, "may_grow", lambda: True)


def model_of(kit, start):
    model = kit.Sequential([kit.layers.Input([4]), kit.layers.Dense(3), kit.layers.Dense(1)])
    for variable in model.trainable_variables:
        variable.assign(np.full(variable.shape, start, np.float32))
    return model


def data():
    inputs = np.random.RandomState(hvd.rank()).rand(32, 4).astype(np.float32)
    return inputs, inputs.sum(axis=1, keepdims=True)


def same_everywhere(values):
    texts = hvd.allgather_object([np.asarray(value).tobytes() for value in values])
    return all(text == texts[0] for text in texts)


def values(variables):
    return [np.array(variable) for variable in variables]


def variables_of(optimizer):
    return optimizer.variables() if callable(optimizer.variables) else optimizer.variables


def leave_from_within(call):
    """Lets the last rank leave, and the others learn of it in a call."""
    if hvd.rank() == hvd.size() - 1:
        raise HorovodInternalError("a rank leaves")
    call()
    raise AssertionError("the call did not fail on this rank")


@pytest.mark.parametrize("module", MODULES)
def test_fit_resumes_where_it_was_interrupted(module):
    """Ranks start with different weights, lose a rank in a graph, and rejoin when hosts are added.

    An interrupt after the last batch of an epoch must not add a batch to it.
    """
    hvk = importlib.import_module(module)
    kit = tf.keras if module == MODULES[0] else keras
    model = model_of(kit, 0.1 * (hvd.rank() + 1))
    optimizer = hvk.DistributedOptimizer(kit.optimizers.SGD(0.01, momentum=0.9))
    model.compile(optimizer, "mse")
    seen = []

    class Interruption(kit.callbacks.Callback):
        def on_batch_end(self, batch, logs=None):
            seen.append((state.epoch, state.batch))
            if seen[-1] == (0, 4):
                state.on_hosts_updated(time.time(), HostUpdateResult.added)
            if seen.count((1, 2)) == 1 and seen[-1] == (1, 2):
                if hvd.rank() == hvd.size() - 1:
                    # The others learn of it in the next reduction of their graph.
                    raise HorovodInternalError("a rank leaves")
            elif seen.count((2, 2)) == 1 and seen[-1] == (2, 2):
                hvd.allreduce(tf.zeros(1))
                raise HostsUpdatedInterrupt

    @hvk.elastic.run
    def train(state):
        callbacks = [
            hvk.elastic.UpdateEpochStateCallback(state),
            hvk.elastic.UpdateBatchStateCallback(state),
            Interruption(),
            hvk.elastic.CommitStateCallback(state, batches_per_commit=4),
        ]
        model.fit(
            *data(),
            batch_size=8,
            epochs=4 - state.epoch,
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
        )
        return state.epoch

    state = hvk.elastic.KerasState(model, epoch=0, batch=0)
    assert train(state) == 4 and state.batch == 0
    assert same_everywhere(model.get_weights())
    whole = [(epoch, batch) for epoch in range(4) for batch in range(1, 5)]
    # A loss costs the batches since the last commit, an interrupt costs nothing.
    assert seen == whole[:6] + whole[4:] and int(np.array(model.optimizer.iterations)) == 16


def test_a_new_rank_gets_variables_and_momenta():
    model = model_of(tf.keras, 0.5)
    if hvd.rank() == 0:
        model.compile(tf.keras.optimizers.Adam(0.1), "mse")
        model.fit(*data(), epochs=1, verbose=0)
    else:
        model.compile(tf.keras.optimizers.Adam(0.3), "mse")
    state = hvd.elastic.TensorFlowKerasState(model, epoch=hvd.rank())
    state.epoch += 5
    state.save()
    state.sync()
    everything = [*model.variables, *variables_of(model.optimizer)]
    assert same_everywhere(values(everything)) and state.epoch == 5
    assert int(np.array(model.optimizer.iterations)) == 1
    kept = values(everything)
    for variable in model.trainable_variables:
        variable.assign(variable * 2.0)
    state.restore()
    assert all(map(np.array_equal, values(everything), kept))


def test_a_model_must_be_built():
    with pytest.raises(ValueError, match="Model must be built first"):
        hvd.elastic.TensorFlowKerasState(tf.keras.Sequential([tf.keras.layers.Dense(1)]))


def test_variables_are_sent_whenever_a_world_forms():
    variable = tf.Variable([float(hvd.rank())])
    state = hvd.elastic.TensorFlowState([variable], step=hvd.rank())
    losses = [1]

    @tf.function
    def total(value):
        return hvd.allreduce(value, op=hvd.Sum)

    @hvd.elastic.run
    def train(state):
        assert variable.numpy() == [0.0] and state.step == 0
        assert total(variable + 1.0).numpy() == [hvd.size()]
        variable.assign([5.0 + hvd.rank()])
        if losses:
            losses.pop()
            leave_from_within(lambda: total(variable))
        return "done"

    assert train(state) == "done"
    variable.assign([7.0 + hvd.rank()])
    state.commit()
    state.sync()
    assert variable.numpy() == [7.0]


@pytest.mark.parametrize("text", ["the disk is on fire", "HorovodAllreduce: lost rank 1"])
def test_a_foreign_error_is_passed_on_whatever_its_text(text):
    @hvd.elastic.run
    def train(state):
        raise tf.errors.UnknownError(None, None, text)

    with pytest.raises(tf.errors.UnknownError, match=text):
        train(hvd.elastic.TensorFlowState([]))


def test_a_lost_rank_is_detected_in_every_op_and_in_graphs():
    ones = tf.ones(2)
    together = tf.function(lambda tensor: hvd.grouped_allreduce([tensor, 2.0 * tensor]))
    left = [
        lambda: together(ones),
        lambda: hvd.allgather(ones),
        lambda: hvd.broadcast(ones, 0),
    ]

    @hvd.elastic.run
    def train(state):
        if left:
            leave_from_within(left.pop())
        return "the end"

    assert train(hvd.elastic.TensorFlowState([])) == "the end"


def test_variables_in_a_session():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("x", initializer=[float(hvd.rank()), 1.0])
        session.run(tf.compat.v1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session, step=1)
        state.sync()
        assert session.run(variable).tolist() == [0.0, 1.0]
        session.run(variable.assign([9.0, 9.0]))
        state.restore()
        assert session.run(variable).tolist() == [0.0, 1.0]
