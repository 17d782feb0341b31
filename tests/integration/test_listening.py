"""What SECURITY.md says of listening sockets, against those of all processes of real jobs."""

import os
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import listening
import pytest
from jobs import MARK, launcher
from lab import marked

PATIENCE = float(os.environ.get("RONDE_TEST_PATIENCE", "1"))
pytestmark = pytest.mark.timeout(60 * PATIENCE)

# Joins, says so, and stays until it may go.
RANK = """
import os, sys, time
from pathlib import Path
import numpy
import horovod.raw as hvd

def stay():
    hvd.init()
    hvd.allreduce(numpy.ones(10), name="first")
    Path(os.environ["SAY_FOLDER"], f"{hvd.rank()}.ready").write_text(str(os.getpid()))
    while not Path(os.environ["SAY_FOLDER"], "go").exists():
        time.sleep(0.01)
    hvd.shutdown()
"""
LOOPBACK = {"127.0.0.1", "::1"}


class Listening:
    """A job whose ranks have met: what its ranks listen at, and what everybody else of it does."""

    def __init__(self, folder, size, command, script, env=None):
        path = folder / "script.py"
        path.write_text(RANK + textwrap.dedent(script))
        mark = uuid.uuid4().hex
        # No setting of whoever runs the tests, and no sockets of theirs.
        env = {**os.environ, "SAY_FOLDER": str(folder), MARK: mark, **(env or {})}
        with (folder / "output.txt").open("w") as output:
            self._job = subprocess.Popen(
                [*command, sys.executable, str(path)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._folder = folder
        try:
            ready = [folder / f"{rank}.ready" for rank in range(size)]
            end = time.monotonic() + 50 * PATIENCE
            while not all(file.exists() and file.read_text() for file in ready):
                assert self._job.poll() is None, (folder / "output.txt").read_text()
                assert time.monotonic() < end, (folder / "output.txt").read_text()
                time.sleep(0.02)
            pids = [int(file.read_text()) for file in ready]
            self.ranks = [sorted(listening.of(pid)) for pid in pids]
            self.others = listening.of_all(set(marked(mark)) - set(pids))
        finally:
            (folder / "go").touch()
            try:
                self.code = self._job.wait(20 * PATIENCE)
            finally:
                self._job.kill()
                self._job.wait()
        assert self.code == 0, Path(folder / "output.txt").read_text()
        assert listening.of_all(marked(mark)) == []


def addresses(sockets):
    return [where[1] for where in sockets if where[0] == "tcp"]


def horovodrun(size, *options):
    return [launcher(), "-np", str(size), *options]


def test_a_job_on_one_host_listens_at_one_port_of_the_loopback_address(tmp_path):
    job = Listening(tmp_path, 2, horovodrun(2), "stay()")
    assert job.ranks == [[], []]
    assert len(job.others) == 1
    assert addresses(job.others) == ["127.0.0.1"]


def test_ranks_that_talk_over_sockets_listen_at_one_loopback_port_each(tmp_path):
    job = Listening(tmp_path, 2, horovodrun(2), "stay()", {"RONDE_TRANSPORT": "tcp"})
    assert [len(sockets) for sockets in job.ranks] == [1, 1]
    assert [addresses(sockets) for sockets in job.ranks] == [["127.0.0.1"], ["127.0.0.1"]]
    assert addresses(job.others) == ["127.0.0.1"]


def test_some_islands_listen_at_a_port_and_an_abstract_socket_per_rank(tmp_path):
    job = Listening(tmp_path, 4, horovodrun(4), "stay()", {"RONDE_SHARED_RANKS": "2"})
    for sockets in job.ranks:
        assert addresses(sockets) == ["127.0.0.1"]
        names = [where[1] for where in sockets if where[0] == "unix"]
        assert len(names) <= 1
        assert len(sockets) <= 2
        assert all(name.startswith("@") for name in names)


def test_under_another_launcher_only_the_first_rank_listens(tmp_path):
    # Not under mpirun: an MPI library listens at ports of its own.
    torchrun = Path(sys.executable).parent / "torchrun"
    if not torchrun.exists():
        pytest.skip("there is no torchrun beside the interpreter; install PyTorch")
    command = [str(torchrun), "--nproc-per-node", "2", "--no-python"]
    job = Listening(tmp_path, 2, command, "stay()")
    first, second = job.ranks
    assert addresses(first) == ["127.0.0.1"]
    assert len(first) == 1
    assert second == []


def test_an_elastic_job_lets_any_host_come(tmp_path):
    script = tmp_path / "discover.sh"
    script.write_text("#!/bin/sh\necho localhost:2\n")
    script.chmod(0o755)
    options = ("--min-np", "2", "--host-discovery-script", str(script))
    job = Listening(tmp_path, 2, horovodrun(2, *options), "stay()")
    assert job.ranks == [[], []]
    assert len(job.others) == 1
    assert addresses(job.others)[0] in {"0.0.0.0", "::"}


def test_a_function_on_two_ranks_listens_as_a_job_of_two_ranks_does(tmp_path):
    script = """
    import horovod
    if __name__ == "__main__":
        horovod.run(stay, np=2)
    """
    job = Listening(tmp_path, 2, [], script)
    assert job.ranks == [[], []]
    assert len(job.others) == 1
    assert addresses(job.others) == ["127.0.0.1"]


def test_metrics_are_one_socket_for_each_rank(tmp_path):
    job = Listening(
        tmp_path, 2, horovodrun(2), "stay()", {"RONDE_METRICS": f"unix:{tmp_path}/metrics"}
    )
    for rank, sockets in enumerate(job.ranks):
        assert sockets == [("unix", f"{tmp_path}/metrics.{rank}")]
    assert addresses(job.others) == ["127.0.0.1"]


def test_a_world_of_one_listens_at_nothing(tmp_path):
    job = Listening(tmp_path, 1, [], "stay()")
    assert job.ranks == [[]]
    assert job.others == []
