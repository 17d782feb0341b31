"""Child processes of a world of one, and processes that look like children and are none."""

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

import horovod.raw as hvd
from horovod import _native

METHODS = ("fork", "spawn", "forkserver")


@pytest.fixture(autouse=True)
def _world():
    hvd.init()
    yield
    hvd.shutdown()


def answers():
    known = hvd.is_initialized()
    return (known, hvd.rank(), hvd.size(), hvd.global_process_set.size()) if known else known


def refused(call):
    with pytest.raises(RuntimeError, match=r"is a child of rank 0 \(pid \d+\) and not a rank"):
        call()


def live():
    """What a child of a rank that is alone may and may not do."""
    assert answers() == (True, 0, 1, 1)
    refused(lambda: hvd.allreduce(np.ones(1)))
    refused(hvd.barrier)
    refused(hvd.shutdown)
    # Nobody is disturbed by a world of its own.
    hvd.init()
    assert not _native.in_child() and hvd.allreduce(np.ones(1)).item() == 1.0
    hvd.shutdown()
    return "lived"


def from_a_grandchild():
    return run_in("spawn", answers)


def run_in(method, call):
    # Its processes may have children of their own, those of a pool may not.
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as executor:
        return executor.submit(call).result()


@pytest.mark.parametrize("method", METHODS)
def test_a_child_answers_as_its_parent_and_may_have_a_world_of_its_own(method):
    assert run_in(method, live) == "lived"
    assert hvd.allreduce(np.ones(1)).item() == 1.0


def test_children_of_children_answer_too():
    assert run_in("fork", from_a_grandchild) == (True, 0, 1, 1)


@pytest.mark.parametrize("method", METHODS)
def test_who_has_left_the_world_has_no_children_who_know_it(method):
    hvd.shutdown()
    assert run_in(method, answers) is False


def test_a_server_that_was_there_before_the_world_has_children_who_know_it():
    hvd.shutdown()
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, context) as before:
        assert before.submit(answers).result() is False
        hvd.init()
        assert run_in("forkserver", answers) == (True, 0, 1, 1)


def test_a_program_that_a_rank_starts_is_no_child():
    code = (
        "import os, horovod.raw as hvd\n"
        "print(hvd.is_initialized(), os.environ.get('RONDE_PARENT'))\n"
        "hvd.init(); print(hvd.rank(), hvd.size()); hvd.shutdown()\n"
    )
    assert "RONDE_PARENT" in os.environ
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.stdout == "False None\n0 1\n", child.stderr


@pytest.mark.parametrize("garbage", ["", "1", "a b c d e f g h", "1 2 3 4 5 6 7 8 9"])
def test_a_variable_that_makes_no_sense_means_nothing(garbage):
    code = "import horovod.raw as hvd; print(hvd.is_initialized())"
    env = {**os.environ, "RONDE_PARENT": garbage}
    child = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert child.stdout == "False\n", child.stderr
