"""`horovod.run`: runs a function of this process on the ranks of a job, and its failures."""

import functools
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from jobs import environments, until
from launchers import mpirun

import horovod
import horovod.runner

pytestmark = pytest.mark.timeout(60)

MARK = "RONDE_TEST_MARK"


@pytest.fixture
def mark(monkeypatch):
    """A mark in the environment of every process of a test; none of them may be left."""
    mark = f"run-{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield mark
    until(lambda: not marked(mark), 10, lambda: f"left behind: {marked(mark)}")


def marked(mark):
    entry = f"{MARK}={mark}".encode()
    own = os.getpid()
    return [pid for pid, env in environments() if entry in env and pid != own]


class OwnError(Exception):
    """An exception that cannot be recreated from its message alone."""

    def __init__(self, code, *, detail):
        super().__init__(f"{code}: {detail}")


def sum_of_ranks(factor, *, offset=0):
    import horovod.raw as hvd

    hvd.init()
    print(f"here is {hvd.rank()}", flush=True)
    total = hvd.allreduce(np.full(4, float(hvd.rank() + 1)), op=hvd.Sum)
    return hvd.rank(), total * factor + offset


def test_the_module_and_the_package_export_the_same_function():
    assert horovod.run is horovod.runner.run


def test_results_are_in_rank_order_and_output_is_forwarded(mark, capsys):
    results = horovod.run(sum_of_ranks, (10,), {"offset": 1}, num_proc=3)
    assert [rank for rank, _ in results] == [0, 1, 2]
    assert all((total == 61).all() for _, total in results)
    printed = capsys.readouterr().out
    assert sorted(printed.splitlines()) == [f"[{rank}]<stdout>:here is {rank}" for rank in range(3)]


def test_functions_and_results_may_be_large_and_are_not_visible_to_others(mark, tmp_path):
    secret = "a-secret-argument" * 3

    def look(word, size):
        seen = Path("/proc/self/cmdline").read_bytes() + Path("/proc/self/environ").read_bytes()
        return word.encode() in seen, os.getcwd(), os.environ[MARK], bytes(size)

    large = 40_000_000
    results = horovod.run(
        functools.partial(look, secret),
        (large,),
        num_proc=2,
        executable=sys.executable,
        output_filename=str(tmp_path / "kept"),
        verbose=0,
    )
    for seen, folder, kept_mark, data in results:
        assert not seen
        assert (folder, kept_mark, len(data)) == (os.getcwd(), mark, large)
    assert (tmp_path / "kept" / "rank.1" / "stdout").exists()


def fail_on(rank, error):
    if int(os.environ["HOROVOD_RANK"]) == rank:
        raise error
    time.sleep(60)


def test_an_exception_of_a_rank_is_both_horovods_and_its_own(mark, capsys):
    with pytest.raises(KeyError, match="no such thing") as caught:
        horovod.run(fail_on, (1, KeyError("no such thing")), num_proc=2)
    error = caught.value
    assert isinstance(error, RuntimeError) and error.args == ("no such thing",)
    assert str(error).startswith(
        "Horovod detected that one or more processes exited with non-zero status"
    )
    assert "Process name: 1\nExit code: 1\nKeyError: 'no such thing'" in str(error)
    cause = str(error.__cause__)
    assert cause.startswith("on rank 1 (localhost, slot 1):")
    assert "fail_on" in cause and "raise error" in cause
    printed = traceback.format_exception(type(error), error, error.__traceback__)
    assert "".join(printed).splitlines()[-1] == "raised on rank 1 (localhost, slot 1)"
    assert "[1]<stderr>:KeyError: 'no such thing'" in capsys.readouterr().err


def test_an_exception_that_cannot_be_unpickled_is_rebuilt_from_its_parts(mark):
    def fail():
        raise OwnError(3, detail="broken")

    with pytest.raises(OwnError, match="OwnError: 3: broken") as caught:
        horovod.run(fail)
    assert isinstance(caught.value, RuntimeError)
    assert "OwnError" in str(caught.value.__cause__)


def test_a_killed_rank_is_named(mark):
    def die():
        if os.environ["HOROVOD_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(RuntimeError) as caught:
        horovod.run(die, num_proc=2)
    text = str(caught.value)
    assert text.startswith(
        "Horovod detected that one or more processes exited with non-zero status"
    )
    assert "rank 1 (localhost, slot 1) was killed by signal 9 (SIGKILL)" in text
    assert "Process name: 1" in text and "Exit code: 137" in text


def test_a_function_that_exits_with_0_instead_of_returning_is_reported(mark):
    with pytest.raises(RuntimeError, match="rank 0 ended with code 0 before"):
        horovod.run(sys.exit, (0,))


def test_arguments_that_the_launcher_refuses_are_a_value_error(mark):
    with pytest.raises(ValueError, match=r"Requested more processes \(2\)"):
        horovod.run(print, num_proc=2, hosts="localhost:1")
    with pytest.raises(RuntimeError, match="could not be started: `/no/such/python`"):
        horovod.run(print, executable="/no/such/python")


def test_an_interrupt_ends_the_job_and_nothing_else(mark, tmp_path):
    def wait():
        open(tmp_path / os.environ["HOROVOD_RANK"], "w").close()
        time.sleep(60)

    def interrupt():
        until(lambda: len(list(tmp_path.iterdir())) == 2, 30, lambda: "no ranks")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        horovod.run(wait, num_proc=2)
    thread.join()
    assert time.monotonic() - start < 30
    assert marked(mark) == []
    assert horovod.run(max, (3, 4)) == [4]


def test_the_job_ends_when_the_caller_is_killed(mark, tmp_path):
    script = tmp_path / "caller.py"
    script.write_text(
        textwrap.dedent("""
            import horovod, time
            def wait():
                print("up", flush=True)
                time.sleep(60)
            horovod.run(wait, num_proc=2)
        """)
    )
    caller = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    with caller:
        assert sorted(caller.stdout.readline() for _ in range(2)) == [
            "[0]<stdout>:up\n",
            "[1]<stdout>:up\n",
        ]
        with suppress(ProcessLookupError):
            caller.kill()
    until(lambda: not marked(mark), 10, lambda: f"left behind: {marked(mark)}")


def outlive():
    """Sums ones; the second process dies at once, and the others rejoin without it."""
    import horovod.raw as hvd
    from horovod import _native
    from horovod.common.exceptions import HorovodInternalError

    while True:
        hvd.init()
        _native.elastic_reached("state")
        try:
            if os.environ["RONDE_WORKER"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            total = hvd.allreduce(np.ones(4), op=hvd.Sum)
            return hvd.rank(), os.environ["RONDE_WORKER"], float(total[0])
        except HorovodInternalError:
            hvd.shutdown()


def test_an_elastic_job_returns_the_results_of_its_last_ranks(mark, capsys, monkeypatch):
    monkeypatch.setenv("RONDE_FLIGHT_RECORDER_DIR", "off")
    results = horovod.run(outlive, num_proc=3, min_num_proc=2)
    assert results == [(0, "0", 2.0), (1, "2", 2.0)]
    assert "[ronde] lost rank 1 (localhost, slot 1): was killed" in capsys.readouterr().err


def test_an_elastic_job_that_fails_raises_the_ranks_exception(mark, capsys):
    def fail():
        raise KeyError("no such thing")

    with pytest.raises(RuntimeError, match=r"rank 0 \(localhost, slot 0\)") as caught:
        horovod.run(fail, host_discovery_script="echo localhost:1")
    assert isinstance(caught.value, KeyError)
    assert str(caught.value.__cause__).startswith("on rank 0 (localhost, slot 0):")


def children(pid):
    """The children of a process, with their command lines."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                yield int(entry.name), (entry / "cmdline").read_bytes().split(b"\0")


def kill_the_launcher(when):
    """Kills the launcher of this process's job as soon as the condition holds."""

    def kill():
        until(when, 40, lambda: "no ranks")
        (launcher,) = [pid for pid, line in children(os.getpid()) if b"__ronde-called" in line]
        os.kill(launcher, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def test_a_killed_launcher_is_reported_with_a_hint(mark, tmp_path):
    def wait():
        open(tmp_path / os.environ["HOROVOD_RANK"], "w").close()
        time.sleep(60)

    thread = kill_the_launcher(lambda: len(list(tmp_path.iterdir())) == 2)
    with pytest.raises(RuntimeError) as caught:
        horovod.run(wait, num_proc=2)
    thread.join()
    first, *_, last = str(caught.value).split(":\n", 1)[1].splitlines()
    assert first.startswith("the launcher, `horovodrun` (process ")
    assert first.endswith("), was killed by signal 9 (SIGKILL) while the job ran")
    assert last.startswith("hint: it was killed by hand, or memory has run out")


def test_a_launcher_killed_at_startup_is_reported(mark, tmp_path, monkeypatch):
    for name, end in [("killed", "kill -9 $$"), ("ended", "echo 'it broke' >&2; exit 101")]:
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{end}\n")
        program.chmod(0o755)
        monkeypatch.setattr(horovod.runner, "horovodrun", lambda program=program: str(program))
        with pytest.raises(RuntimeError) as caught:
            horovod.run(print)
        if name == "killed":
            words = "was killed by signal 9 (SIGKILL) before any rank was started"
            assert words in str(caught.value)
        else:
            assert str(caught.value) == "it broke"


def test_the_last_lines_of_a_launcher_that_fails_are_reported(mark, tmp_path, monkeypatch, capsys):
    # The first frame says that the job has started; the last one never arrives.
    started = r"printf '\000\377\377\377\377\000\000\000\000'"
    program = tmp_path / "launcher"
    program.write_text(
        f"#!/bin/sh\n{started}; for line in $(seq 20); do echo $line >&2; done; exit 3\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(horovod.runner, "horovodrun", lambda: str(program))
    with pytest.raises(RuntimeError) as caught:
        horovod.run(print)
    _, first, *lines, hint = str(caught.value).splitlines()
    assert first.endswith("ended with code 3 without saying how the job went, while the job ran")
    assert lines == ["its last lines were:", *(f"  {line}" for line in range(11, 21))]
    assert hint.startswith("hint: run it again with `verbose=True`")
    assert capsys.readouterr().err.split() == [str(line) for line in range(1, 21)]


@pytest.fixture(params=["mpich", "openmpi"])
def over_mpi(request, monkeypatch):
    """An `mpirun` on the PATH, for `use_mpi`."""
    _, folder = mpirun(request.param)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return request.param


def test_ranks_under_mpirun_return_results_and_raise_exceptions(mark, over_mpi, capsys):
    def meet(factor):
        from horovod.common.basics import _basics

        return *sum_of_ranks(factor), _basics.mpi_enabled(), os.environ["FROM_ARGS"]

    # Both accept variables, each with its own option.
    extra = {"mpich": "-genv FROM_ARGS yes", "openmpi": "--oversubscribe -x FROM_ARGS=yes"}
    results = horovod.run(
        meet, (10,), num_proc=3, hosts="localhost:3", use_mpi=True, mpi_args=extra[over_mpi]
    )
    assert [(rank, enabled, given) for rank, _, enabled, given in results] == [
        (rank, True, "yes") for rank in range(3)
    ]
    assert all((total == 60).all() for _, total, _, _ in results)
    assert "here is 2" in capsys.readouterr().out

    def fail():
        import horovod.raw as hvd

        hvd.init()
        hvd.barrier()
        if hvd.rank() == 1:
            raise KeyError("no such thing")
        time.sleep(60)

    with pytest.raises(KeyError) as caught:
        horovod.run(fail, num_proc=2, use_mpi=True)
    error = caught.value
    assert isinstance(error, RuntimeError)
    # Its exit code may reflect the ranks that it killed.
    assert re.match(r"mpirun failed with exit code \d+\n", str(error)), str(error)
    printed = traceback.format_exception(type(error), error, error.__traceback__)
    assert "".join(printed).splitlines()[-1] == f"raised on rank 1 ({socket.gethostname()})"


def test_ranks_under_mpirun_end_when_the_launcher_is_killed(mark, over_mpi, tmp_path):
    def wait():
        open(tmp_path / str(os.getpid()), "w").close()
        time.sleep(60)

    thread = kill_the_launcher(lambda: len(list(tmp_path.iterdir())) == 2)
    with pytest.raises(RuntimeError, match=r"was killed by signal 9 \(SIGKILL\) while the job ran"):
        horovod.run(wait, num_proc=2, use_mpi=True)
    thread.join()


def test_an_interrupt_ends_ranks_under_mpirun(mark, over_mpi, tmp_path):
    def wait():
        open(tmp_path / str(os.getpid()), "w").close()
        time.sleep(60)

    def interrupt():
        until(lambda: len(list(tmp_path.iterdir())) == 2, 40, lambda: "no ranks")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        horovod.run(wait, num_proc=2, use_mpi=True)
    thread.join()


def test_without_mpirun_the_error_names_what_to_install(mark, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="`--mpi` needs `mpirun`, which cannot be started"):
        horovod.run(print, use_mpi=True)
