"""The raw binding in a world of one, and the modules it loads."""

import gc
import subprocess
import sys

import numpy
import pytest

import horovod.raw as hvd
from horovod import _native


@pytest.fixture(autouse=True)
def world():
    hvd.init()
    yield
    hvd.shutdown()


def test_it_loads_neither_numpy_nor_a_framework():
    code = "import horovod.raw, sys; print([m for m in ('numpy', 'torch') if m in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "[]"


def test_a_single_rank_gets_its_input_back():
    array = numpy.arange(6.0).reshape(3, 2)
    assert (hvd.allreduce(array) == array).all()
    assert (hvd.allreduce(array, op=hvd.Sum, postscale_factor=0.5) == array / 2).all()
    assert (hvd.allgather(array) == array).all()
    assert (hvd.broadcast(array, 0) == array).all()
    assert (hvd.reducescatter(array) == array).all()
    received, rows = hvd.alltoall(array, [2])
    assert (received == array[:2]).all()
    assert rows == [2]
    assert hvd.join() == 0
    hvd.barrier()


def test_a_result_owns_its_memory():
    gathered = hvd.allgather(numpy.arange(100_000))
    view = gathered[10:20]
    del gathered
    gc.collect()
    hvd.allgather(numpy.zeros(100_000, dtype="int64"))
    assert view.tolist() == list(range(10, 20))


def test_only_our_memory_can_be_claimed_and_only_once():
    capsule, _ = _native.wait(_native.allgather(numpy.ones(3), "claimed"))
    assert numpy.asarray(_native.claim(capsule)).view("float64").tolist() == [1.0] * 3
    with pytest.raises(ValueError, match="PyCapsule"):
        _native.claim(capsule)
    with pytest.raises(TypeError, match="not one of ours"):
        _native.claim(numpy.ones(3).__dlpack__())
    with pytest.raises(ValueError, match="PyCapsule"):
        _native.claim(3)
