"""Child processes of a rank in a world of one, and processes that only look like children."""

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
    """Checks what a child of a rank in a world of one may and may not do."""
    assert answers() == (True, 0, 1, 1)
    refused(lambda: hvd.allreduce(np.ones(1)))
    refused(hvd.barrier)
    refused(hvd.shutdown)
    # A world of its own disturbs no one.
    hvd.init()
    assert not _native.in_child() and hvd.allreduce(np.ones(1)).item() == 1.0
    hvd.shutdown()
    return "lived"


def from_a_grandchild():
    return run_in("spawn", answers)


def run_in(method, call):
    # Unlike those of a `Pool`, its processes may have children.
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as executor:
        return executor.submit(call).result()


@pytest.mark.parametrize("method", METHODS)
def test_a_child_answers_like_its_parent_and_may_have_its_own_world(method):
    assert run_in(method, live) == "lived"
    assert hvd.allreduce(np.ones(1)).item() == 1.0


def test_grandchildren_answer_like_the_rank():
    assert run_in("fork", from_a_grandchild) == (True, 0, 1, 1)


@pytest.mark.parametrize("method", METHODS)
def test_children_of_a_process_that_has_left_the_world_are_not_initialized(method):
    hvd.shutdown()
    assert run_in(method, answers) is False


def test_children_of_a_fork_server_older_than_the_world_know_the_world():
    hvd.shutdown()
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, context) as before:
        assert before.submit(answers).result() is False
        hvd.init()
        assert run_in("forkserver", answers) == (True, 0, 1, 1)


def test_a_program_started_by_a_rank_is_not_a_child():
    code = (
        "import os, horovod.raw as hvd\n"
        "print(hvd.is_initialized(), os.environ.get('RONDE_PARENT'))\n"
        "hvd.init(); print(hvd.rank(), hvd.size()); hvd.shutdown()\n"
    )
    assert "RONDE_PARENT" in os.environ
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.stdout == "False None\n0 1\n", child.stderr


@pytest.mark.parametrize("malformed", ["", "1", "a b c d e f g h", "1 2 3 4 5 6 7 8 9"])
def test_a_malformed_variable_is_ignored(malformed):
    code = "import horovod.raw as hvd; print(hvd.is_initialized())"
    env = {**os.environ, "RONDE_PARENT": malformed}
    child = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert child.stdout == "False\n", child.stderr
