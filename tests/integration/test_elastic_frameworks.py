"""Elastic TensorFlow, Keras and JAX jobs with the real launcher and workers that are killed.

All three follow the same scenario. A worker pauses before a step and is killed while the others
wait for it in their step, in a kernel or a compiled program. They restore their commit and continue
without it, in the same processes. Then a host is added, and its worker gets the state. Every rank
has a different gradient, and the mean is always one, so the weights show how many steps were done.
"""

import os
import signal
import sys
from importlib.util import find_spec

import pytest
from jobs import LIMIT_SECONDS
from workers import Workers

pytestmark = pytest.mark.timeout(LIMIT_SECONDS + 8)

PRELUDE = """
import hashlib, json, os, signal, time
from pathlib import Path

import numpy as np
import horovod.raw as raw

FOLDER, WORKER = Path(os.environ["SAY_FOLDER"]), int(os.environ["RONDE_WORKER"])
RATE, MOMENTUM, PER_COMMIT = 2.0**-6, 0.5, 2


def say(event, **facts):
    with (FOLDER / f"{WORKER}.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "pid": os.getpid(), **facts}) + "\\n")


def share():
    # The mean over all ranks is one.
    return 2.0 * (raw.rank() + 1) / (raw.size() + 1)


def hold(step):
    # After an uncommitted step, so that there is something to undo.
    if step % PER_COMMIT == 1 and (FOLDER / f"hold.{WORKER}").exists():
        say("holding", step=step)
        signal.pause()


def is_over():
    time.sleep(0.01)
    flag = np.array([(FOLDER / "stop").exists()], np.float32)
    return bool(raw.allreduce(flag, op=raw.Max, name="stop")[0])


def look(event, step, arrays):
    arrays = [np.asarray(array) for array in arrays]
    own = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).digest()
    every = raw.allgather(np.frombuffer(own, np.uint8)[None], name="digests")
    facts = {"equal": bool((every == every[0]).all()), "weights": arrays[0].ravel().tolist()}
    say(event, rank=raw.rank(), size=raw.size(), step=step, **facts)


say("started")
"""

LOOP = """
@hvd.elastic.run
def train(state):
    look("world", state.step, everything())
    while True:
        hold(state.step)
        advance()
        state.step += 1
        say("step", step=state.step)
        if state.step % PER_COMMIT == 0:
            state.commit()
            if is_over():
                return


train(state)
look("done", state.step, everything())
"""

TAPE = """
import tensorflow as tf
import horovod.tensorflow as hvd

tf.config.threading.set_inter_op_parallelism_threads(2)
hvd.init()
layers = [tf.keras.layers.Dense(1, use_bias=False) for _ in range(3)]
model = tf.keras.Sequential([tf.keras.layers.Input([1]), *layers])
for variable in model.trainable_variables:
    variable.assign([[float(WORKER)]])
optimizer = tf.keras.optimizers.SGD(RATE, momentum=MOMENTUM)
state = hvd.elastic.TensorFlowKerasState(model, optimizer, step=0)


@tf.function
def step(value):
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.add_n([tf.reduce_sum(each) for each in model.trainable_variables]) * value
    gradients = tape.gradient(loss, model.trainable_variables)
    # Far more at the same time than there are threads.
    others = [hvd.allreduce(value + number, name=f"other.{number}") for number in range(40)]
    with tf.control_dependencies(others):
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return tf.stack(others)


def advance():
    found = step(tf.constant(share(), tf.float32))
    assert np.allclose(found, 1.0 + np.arange(40)), found


def everything():
    return [*model.get_weights(), *[np.array(each) for each in optimizer.variables]]
"""

KERAS = """
import keras
import horovod.keras as hvd

BATCHES = 4
hvd.init()
model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1, use_bias=False)])
model.set_weights([np.full([1, 1], float(WORKER))])
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(RATE, momentum=MOMENTUM))
model.compile(optimizer, loss=lambda wanted, found: keras.ops.mean(found))
state = hvd.elastic.KerasState(model, epoch=0, batch=0)


def everything():
    return [*model.get_weights(), *[np.array(each) for each in optimizer.variables]]


def done():
    return state.epoch * BATCHES + state.batch


class Steps(keras.callbacks.Callback):
    def on_batch_begin(self, batch, logs=None):
        hold(done())

    def on_batch_end(self, batch, logs=None):
        say("step", step=done())

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = is_over()


@hvd.elastic.run
def train(state):
    look("world", done(), everything())
    inputs = np.full([BATCHES, 1], share(), np.float32)
    callbacks = [
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        Steps(),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=PER_COMMIT),
    ]
    model.fit(inputs, inputs, 1, 10_000, shuffle=False, verbose=0, callbacks=callbacks)


train(state)
look("done", done(), everything())
"""

JAX = """
import jax
import jax.numpy as jnp
import optax
import horovod.jax as hvd

hvd.init()
optimizer = hvd.DistributedOptimizer(optax.sgd(RATE, momentum=MOMENTUM))
params = {"first": jnp.full(3, float(WORKER)), "second": jnp.full((2, 2), float(WORKER))}
state = hvd.elastic.JaxState(params=params, optimizer=optimizer.init(params), step=0)


def step(params, kept, value):
    gradients = jax.tree_util.tree_map(lambda leaf: jnp.full_like(leaf, value), params)
    updates, kept = optimizer.update(gradients, kept, params)
    return optax.apply_updates(params, updates), kept


step = jax.jit(step, donate_argnums=(0, 1))


def advance():
    state.params, state.optimizer = step(state.params, state.optimizer, share())
    jax.block_until_ready(state.params)


def everything():
    return jax.tree_util.tree_leaves([state.params, state.optimizer])
"""


KINDS = {
    "tape": (TAPE + LOOP, "tensorflow"),
    "keras": (KERAS, "tensorflow"),
    "jax": (JAX + LOOP, "jax"),
}


@pytest.mark.parametrize(
    ("kind", "size", "victim"), [("tape", 2, 1), ("keras", 2, 0), ("jax", 3, 0)]
)
def test_training_survives_a_death_during_a_step_and_accepts_a_new_worker(
    tmp_path, kind, size, victim
):
    script, framework = KINDS[kind]
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    (tmp_path / "train.py").write_text(PRELUDE + script)
    command = [sys.executable, str(tmp_path / "train.py")]
    options = ["-np", str(size), "--min-np", "1", "--max-np", str(size)]
    survivors, new_worker = [worker for worker in range(size) if worker != victim], size
    env = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    with Workers(tmp_path, [f"localhost:{size}"], options, command, env) as job:
        begun = [job.world(worker, size) for worker in range(size)]
        job.steps(survivors[0], 5)
        (tmp_path / f"hold.{victim}").touch()
        late = [{"rank": begun[victim]["rank"], "waiting_ranks": size - 1}]
        job.until(lambda: job.late() == late, "steps that wait for one rank")
        os.kill(job.said(victim, "started")[0]["pid"], signal.SIGKILL)
        without = [job.world(worker, size - 1) for worker in survivors]
        job.offer([f"localhost:{size}", "127.0.0.2:1"])
        together = job.world(new_worker, size)
        job.steps(new_worker, 5)
        job.stop()
        assert job.wait() == 0, job.output()
        assert "Traceback" not in job.output()

    held = job.said(victim, "holding")[0]["step"]
    # Only the uncommitted step is undone.
    assert [world["step"] for world in without] == [held - 1] * (size - 1)
    assert together["step"] > held and together["rank"] > 0
    assert all(world["equal"] for world in (*begun, *without, together))
    last = job.said(new_worker, "done")[0]["step"]
    for worker in survivors:
        assert_done(job, worker, [*range(1, held + 1), *range(held, last + 1)])
    assert_done(job, new_worker, list(range(together["step"] + 1, last + 1)))


def assert_done(job, worker, steps):
    """Checks that a worker was one process, did these steps, and has the final weights."""
    (started,), (done,) = job.said(worker, "started"), job.said(worker, "done")
    assert done["pid"] == started["pid"] and done["equal"]
    assert [each["step"] for each in job.said(worker, "step")] == steps
    expected = weight_after(steps[-1], job.said(0, "world")[0]["weights"][0])
    assert done["weights"] == pytest.approx([expected] * len(done["weights"]), abs=1e-3)


def weight_after(steps, start):
    """A weight after steps with a momentum of one half and gradients of one."""
    return start - 2.0**-6 * (2 * steps - 2 + 2.0 ** (1 - steps))
