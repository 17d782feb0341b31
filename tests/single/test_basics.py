"""Joining and leaving a world of one, and what this build reports about itself."""

import os
import subprocess
import sys

import pytest
import torch

import horovod.torch as hvd
from horovod import _native
from horovod.common import process_sets
from horovod.torch import mpi_ops

SCOPES = ("", "local_", "cross_")
NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


@pytest.fixture(autouse=True)
def _shut_down():
    hvd.shutdown()
    yield
    hvd.shutdown()


@pytest.mark.parametrize(
    "query",
    [
        hvd.rank,
        hvd.size,
        hvd.local_rank,
        hvd.local_size,
        hvd.cross_rank,
        hvd.cross_size,
        mpi_ops.is_homogeneous,
    ],
)
def test_queries_before_init_are_value_errors(query):
    with pytest.raises(ValueError) as error:
        query()
    assert str(error.value) == NOT_INITIALIZED


@pytest.mark.parametrize(
    "call",
    [
        lambda: hvd.allreduce(torch.ones(1)),
        lambda: hvd.allreduce_async_(torch.ones(1)),
        lambda: hvd.grouped_allreduce([torch.ones(1)]),
        lambda: hvd.allgather(torch.ones(1)),
        lambda: hvd.grouped_allgather([torch.ones(1)]),
        lambda: hvd.broadcast(torch.ones(1), 0),
        lambda: hvd.alltoall(torch.ones(1)),
        lambda: hvd.alltoall_async(torch.ones(1), [1]),
        lambda: hvd.reducescatter(torch.ones(1)),
        lambda: hvd.grouped_reducescatter_async([torch.ones(1)]),
        lambda: hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), "sparse", hvd.Sum),
        hvd.join,
        lambda: hvd.add_process_set([0]),
        lambda: hvd.remove_process_set(hvd.ProcessSet([0])),
        lambda: hvd.allreduce(torch.ones(1), process_set=hvd.ProcessSet([0])),
        lambda: hvd.broadcast_object(1),
        hvd.barrier,
        lambda: hvd.DistributedOptimizer(torch.optim.SGD([torch.ones(1)], lr=1)),
    ],
)
def test_collectives_before_init_are_value_errors(call):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == NOT_INITIALIZED


def test_without_a_launcher_the_world_has_one_rank():
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (0, 1)
    assert (hvd.local_rank(), hvd.local_size()) == (0, 1)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert mpi_ops.is_homogeneous()


def test_init_and_shutdown_work_repeatedly():
    for _ in range(100):
        assert not hvd.is_initialized()
        hvd.init()
        hvd.init()
        assert hvd.is_initialized()
        assert torch.equal(hvd.allreduce(torch.ones(2)), torch.ones(2))
        hvd.shutdown()
        hvd.shutdown()


def test_a_world_of_one_starts_no_threads_and_opens_no_files():
    code = (
        "import os, horovod.torch as hvd, torch\n"
        "def open_now(): return len(os.listdir('/proc/self/task')), "
        "sorted(os.listdir('/proc/self/fd'))\n"
        "before = open_now(); hvd.init(); hvd.allreduce_(torch.ones(4))\n"
        "print(before == open_now())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.stdout == "True\n", result.stderr


def test_a_forked_child_exits_normally():
    hvd.init()
    child = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, sys, horovod.torch as hvd, torch\n"
            "hvd.init()\n"
            "pid = os.fork()\n"
            "if pid == 0: sys.exit(7)\n"
            "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
            "print(hvd.allreduce(torch.ones(1)).item())",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.stdout == "1.0\n", child.stderr


def test_the_build_has_gloo_and_mpi_but_uses_mpi_only_under_its_launcher():
    assert hvd.gloo_built() and hvd.gloo_enabled() and hvd.mpi_built()
    lacking = [
        hvd.mpi_enabled,
        hvd.ddl_built,
        hvd.ccl_built,
        hvd.rocm_built,
    ]
    assert [query() for query in lacking] == [False] * len(lacking)
    with pytest.raises(ValueError) as error:
        hvd.mpi_threads_supported()
    assert str(error.value) == (
        "Horovod MPI is not enabled; Please make sure it's installed and enabled."
    )


def test_communicators_are_refused_with_a_hint():
    with pytest.raises(NotImplementedError, match="horovodrun -np N"):
        hvd.init([0, 1])
    with pytest.raises(ValueError, match=r"Invalid type of argument comm\."):
        hvd.init("world")
    communicator = type("Intracomm", (), {"__module__": "mpi4py.MPI"})()
    with pytest.raises(ValueError, match=r"Horovod has not been built with MPI support\."):
        hvd.init(communicator)
    assert not hvd.is_initialized()
    for everyone in ([], [0], (0,)):
        hvd.init(everyone)
        assert hvd.is_initialized()
        hvd.shutdown()


CALL = "import subprocess; subprocess.run(['sh', '-c', 'echo no port >&2; exit 3'], check=True, "
SILENT = "class Silent(Exception):\n    __str__ = None\nraise Silent"


@pytest.mark.parametrize(
    ("end", "description"),
    [
        ("raise ValueError('boom')", "ValueError: boom"),
        ("raise KeyError", "KeyError"),
        (SILENT, "Silent: <exception str() failed>"),
        (CALL + "capture_output=True)", "its stderr: no port"),
        ("sys.exit(3)", None),
        ("pass", None),
    ],
)
def test_the_exception_that_ends_the_process_is_passed_to_the_core(end, description):
    code = (
        "import sys, horovod.raw as hvd\n"
        "from horovod.common import basics\n"
        "hvd.init()\n"
        "class Native:\n"
        "    def shutdown(self, error=None, exiting=False): print(error, exiting)\n"
        "basics._native = Native()\n" + end
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    if description is None:
        assert result.stdout == "None True\n", result.stderr
        return
    first, *_, last, exiting = result.stdout.splitlines()
    assert first == "Traceback (most recent call last):", result.stdout
    assert exiting == " True"
    assert last.endswith(description), result.stdout


def test_the_c_interface_answers_like_the_python_one():
    library = process_sets._basics.MPI_LIB_CTYPES
    numbers = [f"horovod_{scope}{what}" for scope in SCOPES for what in ("rank", "size")]
    assert not library.horovod_is_initialized()
    assert [getattr(library, name)() for name in numbers] == [-1] * 6
    hvd.init()
    assert library.horovod_is_initialized()
    assert [getattr(library, name)() for name in numbers] == [0, 1] * 3
    assert library.horovod_is_homogeneous()
    for name in ("mpi", "gloo", "nccl", "ddl", "ccl", "cuda", "rocm"):
        assert getattr(library, f"horovod_{name}_built")() == getattr(hvd, f"{name}_built")()
    for name in ("Average", "Sum", "Adasum", "Min", "Max", "Product"):
        assert getattr(library, f"horovod_reduce_op_{name.lower()}")() == getattr(hvd, name)


def test_elastic_functions_do_nothing_outside_an_elastic_job():
    assert not _native.is_elastic()
    for init in (lambda: None, hvd.init):
        init()
        assert _native.elastic_update(0, 0.01) is None
        _native.elastic_reached("state")
        _native.elastic_departing("it was sent SIGTERM")
    with pytest.raises(ValueError, match="`state` or `commit`"):
        _native.elastic_reached("end")


@pytest.mark.parametrize(
    ("env", "grows", "elastic"),
    [
        ({}, False, False),
        ({"RONDE_WORKER": "3"}, False, False),
        ({"HOROVOD_ELASTIC": "1"}, True, False),
        ({"HOROVOD_ELASTIC": "1", "RONDE_WORKER": "3"}, True, True),
    ],
)
def test_whether_a_job_is_elastic_is_read_once(env, grows, elastic):
    script = (
        "import os\n"
        "from horovod import _native\n"
        "print(_native.may_grow(), _native.is_elastic())\n"
        "for name in ('HOROVOD_ELASTIC', 'RONDE_WORKER'):\n"
        "    os.environ[name] = '0' if os.environ.get(name, '0') != '0' else '1'\n"
        "print(_native.may_grow(), _native.is_elastic())\n"
    )
    names = ("HOROVOD_ELASTIC", "RONDE_WORKER")
    env = {**{name: each for name, each in os.environ.items() if name not in names}, **env}
    command = [sys.executable, "-c", script]
    result = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=50, check=True
    )
    assert result.stdout == f"{grows} {elastic}\n" * 2
