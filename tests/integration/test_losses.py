"""How a program learns about a lost rank, as data, in every framework.

A rank is killed while the others wait for it in a call, a graph, a compiled program, a callback or
a backward pass. Whichever class the framework raises there, the attributes of
`HorovodInternalError` name the lost rank, its host, the cause, and the tensor that was awaited.
"""

import json
import os
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from jobs import LIMIT_SECONDS, Job, launcher, until

pytestmark = pytest.mark.timeout(60)

BEGIN = """
import pickle
import horovod.raw as raw
from horovod.common.exceptions import HorovodInternalError

def known(error):
    return {name: getattr(error, name) for name in ("ranks", "hosts", "cause", "tensor")}

raw.init()
once()
assert HorovodInternalError.last() is None
raw.barrier()
"""

KILLED = """
if RANK == 1:
    signal.pause()
# The launcher ends the other ranks after a second, possibly before they have built the error.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
try:
    once()
except Exception as error:
    raised, last = error, HorovodInternalError.last()
    same = pickle.loads(pickle.dumps(last))
    say("lost", kinds=[each.__name__ for each in type(raised).__mro__], text=str(raised),
        raised=known(raised) if isinstance(raised, HorovodInternalError) else None,
        last=known(last), pickled=known(same), same=str(last) == str(same))
    raise
"""

RAW = """
import numpy as np
import horovod.raw as hvd

def once():
    hvd.allreduce(np.ones(3, np.float32), name="x")
"""

TORCH = """
import torch
import horovod.torch as hvd

def once():
    hvd.synchronize(hvd.allreduce_async(torch.ones(3), name="x"))
"""

BACKWARD = """
import torch
import torch.distributed as dist
import horovod.torch.distributed
from torch.nn.parallel import DistributedDataParallel

model = None

def once():
    global model
    if model is None:
        dist.init_process_group("ronde")
        model = DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
"""

TENSORFLOW = """
import tensorflow as tf
import horovod.tensorflow as hvd

def once():
    hvd.allreduce(tf.ones(3), name="x")
"""

GRAPH = """
import tensorflow as tf
import horovod.tensorflow as hvd

@tf.function
def total(tensor):
    return hvd.allreduce(tensor, name="x")

def once():
    total(tf.ones(3))
"""

COMPILED = """
import tensorflow as tf
import horovod.tensorflow as hvd

@tf.function(jit_compile=True)
def total(tensor):
    return hvd.allreduce(tensor, name="x")

def once():
    total(tf.ones(3))
"""

KERAS = """
import keras
import numpy as np
import horovod.keras as hvd

model = None

def once():
    global model
    if model is None:
        model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), "mse")
    model.fit(np.ones([2, 1]), np.ones([2, 1]), verbose=0)
"""

JAX = """
import jax.numpy as jnp
import horovod.jax as hvd

def once():
    hvd.allreduce(jnp.ones(3), name="x")
"""

PROGRAM = """
import jax
import jax.numpy as jnp
import horovod.jax as hvd

program = jax.jit(lambda array: hvd.allreduce(array, name="x") * 2.0)

def once():
    program(jnp.ones(3)).block_until_ready()
"""

CALLBACK = """
import jax
import jax.numpy as jnp
import numpy as np
import horovod.raw as hvd
from jax.experimental import io_callback

def on_host(array):
    return hvd.allreduce(np.asarray(array), name="x")

program = jax.jit(lambda array: io_callback(on_host, array, array))

def once():
    program(jnp.ones(3)).block_until_ready()
"""

# The script, the class that a program catches, and the framework that it needs.
CALLS = {
    "raw": (RAW, "HorovodInternalError", None),
    "torch": (TORCH, "HorovodInternalError", "torch"),
    "torch_backward": (BACKWARD, "RuntimeError", "torch"),
    "tensorflow": (TENSORFLOW, "UnknownError", "tensorflow"),
    "tensorflow_graph": (GRAPH, "UnknownError", "tensorflow"),
    "tensorflow_compiled": (COMPILED, "UnknownError", "tensorflow"),
    "keras": (KERAS, "UnknownError", "tensorflow"),
    "jax": (JAX, "HorovodInternalError", "jax"),
    "jax_program": (PROGRAM, "Exception", "jax"),
    "jax_callback": (CALLBACK, "Exception", "jax"),
}


def waiting_for(job):
    """Which ranks are late, and how many others wait for each."""
    ronde = Path(launcher()).parent / "ronde"
    command = [ronde, "status", "--once", "--json", str(job.launcher.pid)]
    status = subprocess.run(command, capture_output=True, text=True, check=False)
    late = json.loads(status.stdout)["late"] if status.returncode == 0 else []
    return [(each["rank"], each["waiting_ranks"]) for each in late]


@pytest.mark.parametrize("call", CALLS)
def test_a_lost_rank_is_described_by_attributes(tmp_path, call):
    script, kind, framework = CALLS[call]
    if framework is not None and find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    env = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    with Job(tmp_path, 3, script, BEGIN, KILLED, api="", env=env) as job:
        until(lambda: waiting_for(job) == [(1, 2)], LIMIT_SECONDS, job.output)
        os.kill(job.pids()[1], signal.SIGKILL)
        for event in job.hear("lost", [0, 2]):
            tensor = event["last"].pop("tensor")
            assert event["last"] == {"ranks": [1], "hosts": ["localhost"], "cause": "signal"}
            assert kind in event["kinds"], event
            if kind == "HorovodInternalError":
                assert event["raised"] == {**event["last"], "tensor": tensor}
            assert event["pickled"] == {**event["last"], "tensor": tensor} and event["same"]
            assert tensor in event["text"], event
        assert job.wait() == 128 + signal.SIGKILL


ENDS = {
    "exception": ("raise ValueError('boom')", 1),
    "exit_code": ("os._exit(3)", 3),
    "left": ("raw.shutdown()", 1),
    "stalled": ("pass", 1),
}


@pytest.mark.parametrize("cause", ENDS)
def test_each_kind_of_loss_has_its_own_cause(tmp_path, cause):
    does, code = ENDS[cause]
    script = f"""
    if RANK == 1:
        while not os.path.exists(os.path.join(os.environ["SAY_FOLDER"], "now")):
            time.sleep(0.01)
        {does}
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            once()
        except HorovodInternalError as error:
            say("lost", **known(error), text=str(error))
            raise
    """
    env = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"} if cause == "stalled" else {}
    with Job(tmp_path, 2, RAW, BEGIN, script, api="", env=env) as job:
        if cause != "stalled":
            until(lambda: waiting_for(job) == [(1, 1)], LIMIT_SECONDS, job.output)
            (tmp_path / "now").touch()
        (event,) = job.hear("lost", [0])
        assert (event["ranks"], event["hosts"], event["cause"]) == ([1], ["localhost"], cause)
        assert event["tensor"] == "allreduce.x", event
        assert job.wait() == code
        # The launcher recognizes a stall by the reported cause, not by its text.
        assert ("see what the missing ranks do instead" in job.output()) == (cause == "stalled")


def test_a_mismatch_has_no_loss_attributes_and_does_not_end_the_world(tmp_path):
    script = """
    try:
        raw.allreduce(np.ones(RANK + 1, np.float32), name="x")
    except HorovodInternalError as error:
        say("differ", **known(error), last=HorovodInternalError.last() is None)
    once()
    """
    with Job(tmp_path, 2, RAW, BEGIN, script, api="") as job:
        for event in job.hear("differ"):
            assert (event["ranks"], event["hosts"], event["cause"]) == ([], [], "")
            assert event["tensor"] is None and event["last"]
        assert job.wait() == 0, job.output()


def test_the_next_world_does_not_inherit_the_loss(tmp_path):
    script = """
    if RANK == 1:
        raw.shutdown()
    else:
        try:
            once()
        except HorovodInternalError:
            assert HorovodInternalError.last().cause == "left"
        raw.shutdown()
        assert HorovodInternalError.last().cause == "left"
    raw.init()
    say("again", last=HorovodInternalError.last() is None)
    once()
    """
    with Job(tmp_path, 2, RAW, BEGIN, script, api="") as job:
        assert all(event["last"] for event in job.hear("again"))
        assert job.wait() == 0, job.output()
