"""Checks SECURITY.md's claims about listening sockets against all processes of real jobs."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import lab as labs
import listening
import pytest
from jobs import MARK, launcher, until
from lab import Lab, inside, marked

PATIENCE = float(os.environ.get("RONDE_TEST_PATIENCE", "1"))
pytestmark = pytest.mark.timeout(60 * PATIENCE)

# Joins, reports it, and waits for the file `go`.
RANK = """
import os, sys, time
from pathlib import Path
import numpy
import horovod.raw as hvd

def join_and_wait():
    hvd.init()
    hvd.allreduce(numpy.ones(10), name="first")
    Path(os.environ["SAY_FOLDER"], f"{hvd.rank()}.ready").write_text(str(os.getpid()))
    while not Path(os.environ["SAY_FOLDER"], "go").exists():
        time.sleep(0.01)
    hvd.shutdown()
"""
LOOPBACK = {"127.0.0.1", "::1"}


class Listening:
    """A job that has formed its world: the sockets of its ranks and of its other processes.

    In a lab the other processes are all those on its hosts; the launcher runs on the first host.
    `meanwhile` is called with the launcher's process once it runs.
    """

    def __init__(self, folder, size, command, script, env=None, lab=None, meanwhile=None):
        path = folder / "script.py"
        path.write_text(RANK + textwrap.dedent(script))
        mark = (env or {}).get(MARK, uuid.uuid4().hex)
        # The mark tells the job's processes from others of the user.
        env = {**os.environ, "SAY_FOLDER": str(folder), MARK: mark, **(env or {})}
        prefix = lab.hosts[0].prefix(folder) if lab else []
        with (folder / "output.txt").open("w") as output:
            self._job = subprocess.Popen(
                [*prefix, *command, sys.executable, str(path)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._folder = folder
        try:
            if meanwhile:
                meanwhile(self._job)
            ready = [folder / f"{rank}.ready" for rank in range(size)]
            end = time.monotonic() + 50 * PATIENCE
            while not all(file.exists() and file.read_text() for file in ready):
                assert self._job.poll() is None, (folder / "output.txt").read_text()
                assert time.monotonic() < end, (folder / "output.txt").read_text()
                time.sleep(0.02)
            pids = [int(file.read_text()) for file in ready]
            self.ranks = [sorted(listening.of(pid)) for pid in pids]
            everything = on_hosts(lab) if lab else marked(mark)
            self.others = of_a_job(set(everything) - set(pids), lab)
        finally:
            (folder / "go").touch()
            try:
                self.code = self._job.wait(20 * PATIENCE)
            finally:
                self._job.kill()
                self._job.wait()
        assert self.code == 0, Path(folder / "output.txt").read_text()
        assert listening.of_all(marked(mark)) == []
        assert not lab or of_a_job(on_hosts(lab), lab) == []


def on_hosts(lab):
    """The PIDs of all processes in a lab."""
    return [pid for host in lab.hosts for pid in inside(host.sshd.pid)]


def of_a_job(pids, lab):
    """The sockets on which these processes listen, without those of the lab's sshds."""
    ssh = {host.port for host in lab.hosts} if lab else set()
    return [where for where in listening.of_all(pids) if where[0] == "unix" or where[2] not in ssh]


def addresses(sockets):
    return [where[1] for where in sockets if where[0] == "tcp"]


def horovodrun(size, *options):
    return [launcher(), "-np", str(size), *options]


def test_a_job_on_one_host_listens_on_one_loopback_port(tmp_path):
    job = Listening(tmp_path, 2, horovodrun(2), "join_and_wait()")
    assert job.ranks == [[], []]
    assert len(job.others) == 1
    assert addresses(job.others) == ["127.0.0.1"]


def test_ranks_that_use_sockets_listen_on_one_loopback_port_each(tmp_path):
    job = Listening(tmp_path, 2, horovodrun(2), "join_and_wait()", {"RONDE_TRANSPORT": "tcp"})
    assert [len(sockets) for sockets in job.ranks] == [1, 1]
    assert [addresses(sockets) for sockets in job.ranks] == [["127.0.0.1"], ["127.0.0.1"]]
    assert addresses(job.others) == ["127.0.0.1"]


def test_with_several_islands_each_rank_listens_on_a_port_and_an_abstract_socket(tmp_path):
    job = Listening(tmp_path, 4, horovodrun(4), "join_and_wait()", {"RONDE_SHARED_RANKS": "2"})
    for sockets in job.ranks:
        assert addresses(sockets) == ["127.0.0.1"]
        names = [where[1] for where in sockets if where[0] == "unix"]
        assert len(names) <= 1
        assert len(sockets) <= 2
        assert all(name.startswith("@") for name in names)


def test_under_another_launcher_only_rank_0_listens(tmp_path):
    # Not with mpirun, because the MPI library listens on its own ports.
    torchrun = Path(sys.executable).parent / "torchrun"
    if not torchrun.exists():
        pytest.skip("there is no torchrun next to the interpreter; install PyTorch")
    command = [str(torchrun), "--nproc-per-node", "2", "--no-python"]
    job = Listening(tmp_path, 2, command, "join_and_wait()")
    first, second = job.ranks
    assert addresses(first) == ["127.0.0.1"]
    assert len(first) == 1
    assert second == []


def test_an_elastic_job_accepts_connections_from_any_host(tmp_path):
    script = tmp_path / "discover.sh"
    script.write_text("#!/bin/sh\necho localhost:2\n")
    script.chmod(0o755)
    options = ("--min-np", "2", "--host-discovery-script", str(script))
    job = Listening(tmp_path, 2, horovodrun(2, *options), "join_and_wait()")
    assert job.ranks == [[], []]
    assert len(job.others) == 1
    assert addresses(job.others)[0] in {"0.0.0.0", "::"}


def test_a_function_on_two_ranks_listens_like_a_job_with_two_ranks(tmp_path):
    script = """
    import horovod
    if __name__ == "__main__":
        horovod.run(join_and_wait, np=2)
    """
    job = Listening(tmp_path, 2, [], script)
    assert job.ranks == [[], []]
    assert len(job.others) == 1
    assert addresses(job.others) == ["127.0.0.1"]


def test_metrics_use_one_unix_socket_per_rank(tmp_path):
    job = Listening(
        tmp_path, 2, horovodrun(2), "join_and_wait()", {"RONDE_METRICS": f"unix:{tmp_path}/metrics"}
    )
    for rank, sockets in enumerate(job.ranks):
        assert sockets == [("unix", f"{tmp_path}/metrics.{rank}")]
    assert addresses(job.others) == ["127.0.0.1"]


def test_metrics_over_tcp_use_one_loopback_port_per_rank(tmp_path):
    first = two_free_ports()
    env = {"RONDE_METRICS": f"127.0.0.1:{first}"}
    job = Listening(tmp_path, 2, horovodrun(2), "join_and_wait()", env)
    for rank, sockets in enumerate(job.ranks):
        assert sockets == [("tcp", "127.0.0.1", first + rank)]
    assert addresses(job.others) == ["127.0.0.1"]
    assert len(job.others) == 1


def two_free_ports():
    """The first of two adjacent free ports."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            first = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", first + 1))
            except (OSError, OverflowError):
                continue
            return first


def test_an_elastic_function_listens_on_one_loopback_port(tmp_path):
    script = """
    import horovod
    if __name__ == "__main__":
        horovod.run(join_and_wait, num_proc=2, min_num_proc=2)
    """
    job = Listening(tmp_path, 2, [], script)
    assert job.ranks == [[], []]
    assert len(job.others) == 1
    assert addresses(job.others) == ["127.0.0.1"]


def test_bench_listens_on_one_loopback_port_and_one_private_unix_socket(tmp_path):
    words = ["bench", "-np", "2", "--sizes", "4", "--seconds", "50"]
    with started(tmp_path, [ronde(), *words], {"TMPDIR": str(tmp_path)}) as (job, mark):

        def measures():
            assert job.poll() is None, (tmp_path / "output.txt").read_text()
            found = listening.of_all(marked(mark))
            # The ranks also listen on their own sockets until the world has formed.
            return found if [where[0] for where in found] == ["tcp", "unix"] else None

        (_, address, _), (_, path) = until(
            measures, 40 * PATIENCE, lambda: listening.of_all(marked(mark))
        )
        assert address == "127.0.0.1"
        assert Path(path).parent.stat().st_mode & 0o777 == 0o700
        job.send_signal(signal.SIGTERM)
        job.wait(20 * PATIENCE)
    assert listening.of_all(marked(mark)) == []


def a_key(folder):
    """A private file with a job's key."""
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_text("ab" * 32)
    return key


def test_an_agent_that_waits_for_its_launcher_does_not_listen(tmp_path):
    key = a_key(tmp_path)
    with socket.socket() as place:
        # Bound but not listening, so that no other process can listen there.
        place.bind(("127.0.0.1", 0))
        join = f"127.0.0.1:{place.getsockname()[1]}"
        command = [ronde(), "agent", "--join", join, "--key-file", str(key)]
        with started(tmp_path, command) as (agent, mark):
            output = tmp_path / "output.txt"

            def waits():
                return "waiting for the launcher" in output.read_text()

            until(waits, 20 * PATIENCE, output.read_text)
            assert len(marked(mark)) == 2
            assert listening.of_all(marked(mark)) == []
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(20 * PATIENCE) == 128 + signal.SIGTERM


def test_a_job_whose_agents_dial_in_listens_like_any_other(tmp_path):
    key = a_key(tmp_path)
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{place.getsockname()[1]}"
    options = ["--agents", "1", "--listen", at, "--key-file", str(key)]
    agent = [ronde(), "agent", "--join", at, "--key-file", str(key), "--slots", "2"]
    (tmp_path / "agent").mkdir()
    with started(tmp_path / "agent", agent) as (_, mark):
        job = Listening(tmp_path, 2, horovodrun(2, *options), "join_and_wait()", {MARK: mark})
    assert job.ranks == [[], []], "the ranks of one host share memory"
    assert addresses(job.others) == ["127.0.0.1"], "the launcher's rendezvous, and nothing else"


@contextmanager
def started(folder, command, env=None):
    """Runs a command; yields its process and the mark of all processes that it starts."""
    mark = uuid.uuid4().hex
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, MARK: mark, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process, mark
    finally:
        process.kill()
        process.wait()


def ronde():
    return str(Path(launcher()).with_name("ronde"))


NO_LAB = labs.why_not()
across_hosts = pytest.mark.skipif(NO_LAB is not None, reason=str(NO_LAB))


@pytest.fixture
def lab(tmp_path):
    with Lab(tmp_path, 3, network="10.80.0") as lab:
        yield lab


def across(lab, *options):
    hosts = ",".join(f"{host.name}:1" for host in lab.hosts)
    return [*horovodrun(3, "-H", hosts, "-p", str(lab.hosts[0].port)), *options]


def check_ranks_across(lab, ranks):
    """Each rank listens on one port of its host's address and at most one abstract socket."""
    for host, sockets in zip(lab.hosts, ranks):
        assert addresses(sockets) == [host.address]
        names = [where[1] for where in sockets if where[0] == "unix"]
        assert len(names) <= 1 and all(name.startswith("@") for name in names)


@across_hosts
def test_across_hosts_the_launcher_and_each_rank_listen_on_one_port(tmp_path, lab):
    job = Listening(tmp_path, 3, across(lab), "join_and_wait()", lab=lab)
    check_ranks_across(lab, job.ranks)
    assert len(job.others) == 1, "the agents stop listening once the ranks run"
    assert addresses(job.others)[0] in {"0.0.0.0", "::"}


@across_hosts
def test_an_elastic_job_across_hosts_listens_like_a_fixed_one(tmp_path, lab):
    job = Listening(tmp_path, 3, across(lab, "--min-np", "2"), "join_and_wait()", lab=lab)
    # Workers do not start in host order, and ranks need not be in worker order.
    each = sorted(address for sockets in job.ranks for address in addresses(sockets))
    assert each == [host.address for host in lab.hosts]
    assert len(job.others) == 1
    assert addresses(job.others)[0] in {"0.0.0.0", "::"}


@across_hosts
def test_agents_listen_on_one_port_per_address_until_the_ranks_start(tmp_path, lab):
    first, second, late = lab.hosts

    def look(job):
        """Checks the agents while they wait for the last host."""

        def both_listen():
            assert job.poll() is None, (tmp_path / "output.txt").read_text()
            found = of_a_job(on_hosts(lab), lab)
            return found if len(found) == 3 else None

        try:
            found = until(both_listen, 20 * PATIENCE, lambda: of_a_job(on_hosts(lab), lab))
        finally:
            late.sshd.send_signal(signal.SIGCONT)
        everywhere = [address for address in addresses(found) if address in {"0.0.0.0", "::"}]
        assert len(everywhere) == 1, found
        assert sorted(set(addresses(found)) - set(everywhere)) == [first.address, second.address]

    late.sshd.send_signal(signal.SIGSTOP)
    job = Listening(tmp_path, 3, across(lab), "join_and_wait()", lab=lab, meanwhile=look)
    check_ranks_across(lab, job.ranks)
    assert len(job.others) == 1


def test_a_world_of_one_does_not_listen(tmp_path):
    job = Listening(tmp_path, 1, [], "join_and_wait()")
    assert job.ranks == [[]]
    assert job.others == []
