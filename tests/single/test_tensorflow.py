"""TensorFlow in a world of one, and the errors for versions that do not work."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

# Not imported here: it is slow, and TensorFlow and torch's Triton cannot share a process.
pytestmark = pytest.mark.skipif(
    find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)


def python(code):
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env
    )


ALONE = """
import numpy as np
import tensorflow as tf
import horovod.tensorflow as hvd

value = tf.range(6, dtype=tf.float32)
try:
    hvd.allreduce(value)
except tf.errors.FailedPreconditionError as error:
    assert "has not been initialized" in str(error)
else:
    raise AssertionError("there is no world yet")
hvd.init()
assert hvd.size() == 1 and hvd.is_homogeneous()
for same in (
    hvd.allreduce(value),
    hvd.allgather(value),
    hvd.broadcast(value, 0),
    hvd.alltoall(value),
    hvd.reducescatter(value),
    *hvd.grouped_allreduce([value]),
):
    assert np.array_equal(same, value), same
assert hvd.join().numpy() == 0 and hvd.broadcast_object("x") == "x"
assert hvd.allgather_object([1]) == [[1]]


@tf.function
def twice(value):
    total = hvd.allreduce(value, op=hvd.Sum) + hvd.allreduce(value, op=hvd.Max)
    return hvd.allgather(total)


assert twice.get_concrete_function(tf.TensorSpec([None, 3])).structured_outputs.shape[1] == 3
assert np.array_equal(twice(value), 2 * value)
graph = twice.get_concrete_function(value).graph.as_graph_def()
kinds = {node.op for node in graph.node}
assert {"HorovodAllreduce", "HorovodAllgather"} <= kinds, kinds
assert not any("^Horovod" in edge for node in graph.node for edge in node.input)
hvd.shutdown()
try:
    hvd.allreduce(value)
except tf.errors.FailedPreconditionError:
    print("all is well")
"""


def test_collectives_work_in_a_world_of_one():
    result = python(ALONE)
    assert result.stdout == "all is well\n", result.stderr


ON_GPUS = """
import horovod.tensorflow
from horovod.tensorflow.library import ops
from tensorflow.python.framework import kernels, op_def_registry

functions = [name for name in dir(ops) if name.startswith("horovod_") and "eager" not in name]
names = {name.title().replace("_", "") for name in functions}
assert {"HorovodAllreduce", "HorovodGroupedAllgather", "HorovodJoin"} <= names, names
for name in names:
    op = op_def_registry.get(name)
    arguments = {each.name for each in (*op.input_arg, *op.output_arg)}
    registered = kernels.get_registered_kernels_for_op(name).kernel
    in_host_memory = {each.device_type: set(each.host_memory_arg) for each in registered}
    assert in_host_memory == {"CPU": set(), "GPU": arguments}, (name, in_host_memory)
print("all is well")
"""


def test_on_gpus_tensorflow_copies_all_tensors_to_host_memory_and_back():
    result = python(ON_GPUS)
    assert result.stdout == "all is well\n", result.stderr


def test_an_old_tensorflow_is_refused_with_the_version_needed():
    result = python(
        "import tensorflow; tensorflow.__version__ = '2.12.1'\nimport horovod.tensorflow"
    )
    last = result.stderr.splitlines()[-1]
    assert last.startswith("ImportError: horovod.tensorflow needs TensorFlow 2.13 or newer")
    assert "this is 2.12.1" in last


def test_an_incompatible_tensorflow_is_reported_with_the_missing_function(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no compiler here")
    library = tmp_path / "libtensorflow_framework.so.2"
    command = [compiler, "-shared", "-x", "c", "/dev/null", "-o", library]
    subprocess.run([*command, f"-Wl,-soname,{library.name}"], check=True)
    result = python(
        "import ctypes\n"
        "from horovod import _native\n"
        f"ctypes.CDLL({str(library)!r})\n"
        "ctypes.CDLL(_native.__file__).ronde_tensorflow_register()\n"
        "print(_native.tensorflow_problem())\n"
        "print(_native.tensorflow_xla_problem())"
    )
    assert result.stdout == (
        "this TensorFlow has no function `TF_NewStatus` in its C interface\n"
        "this TensorFlow has no function `_ZN3xla3ffi12GetXlaFfiApiEv`\n"
    ), result.stderr


def test_a_saved_graph_uses_the_op_names_of_horovod(tmp_path):
    result = python(
        "import tensorflow as tf, horovod.tensorflow as hvd\n"
        "hvd.init()\n"
        "module = tf.Module()\n"
        "spec = [tf.TensorSpec([None])]\n"
        "module.sum = tf.function(lambda v: hvd.allreduce(v, op=hvd.Sum), input_signature=spec)\n"
        f"tf.saved_model.save(module, {str(tmp_path)!r})\n"
        f"again = tf.saved_model.load({str(tmp_path)!r})\n"
        "print(again.sum(tf.ones([2])).numpy().tolist())"
    )
    assert result.stdout == "[1.0, 1.0]\n", result.stderr
