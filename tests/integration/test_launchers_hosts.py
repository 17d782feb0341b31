"""Ranks on several hosts, started by a launcher other than `horovodrun`."""

import getpass
import os
import subprocess
import sys

import pytest
from lab import Lab, horovodrun, why_not
from launchers import PRELUDE, Told, environment, mpirun

REASON = why_not()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(60),
]

PORT = 2222
LIMIT_SECONDS = 50
MEET = """
hvd.init()
say("met", rank=hvd.rank(), place=place(), sum=total(1), mpi=hvd.mpi_enabled())
"""
LOSE = """
try:
    while True:
        total(1)
        if hvd.rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
except HorovodInternalError as error:
    say("lost", rank=hvd.rank(), error=str(error).splitlines()[0])
"""
# The places of one rank on the first host and two on the second, numbered like in Horovod.
PLACES = [[0, 3, 0, 1, 0, 2], [1, 3, 0, 2, 1, 2], [2, 3, 1, 2, 0, 1]]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with Lab(tmp_path_factory.mktemp("lab"), 2, port=PORT, network="10.79.0") as lab:
        yield lab


def start_three(lab, folder, script, variables):
    """Starts each rank by hand with its own variables, and waits for all of them."""
    path = folder / "script.py"
    path.write_text(PRELUDE + script)
    first, second = lab.hosts
    ranks = [
        subprocess.Popen(
            [*host.prefix(), sys.executable, str(path)],
            env=environment(folder, variables(rank)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, host in enumerate([first, second, second])
    ]
    try:
        outputs = [rank.communicate(timeout=LIMIT_SECONDS)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return Told(folder, [rank.returncode for rank in ranks], "".join(outputs))


def test_tasks_of_srun_use_a_rendezvous_file_and_name_a_lost_rank_with_its_host(lab, tmp_path):
    def task(rank):
        return {
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(max(rank - 1, 0)),
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": "3",
            "SLURM_STEP_NUM_NODES": "2",
            "SLURM_JOB_ID": "4711",
            "RONDE_RENDEZVOUS_DIR": str(tmp_path),
        }

    job = start_three(lab, tmp_path, MEET + LOSE, task)
    assert [event["place"] for event in job.all("met")] == PLACES, job.output
    lost = job.all("lost")
    assert [event["rank"] for event in lost] == [0, 1], job.output
    assert all(event["error"].startswith("lost rank 2 (node-b, slot 1): ") for event in lost)


def test_pods_join_at_the_host_of_rank_0_with_a_secret(lab, tmp_path):
    def pod(rank):
        return {
            "JOB_COMPLETION_INDEX": str(rank),
            "WORLD_SIZE": "3",
            "MASTER_ADDR": "node-a",
            "RONDE_SECRET": "0f" * 32,
        }

    job = start_three(lab, tmp_path, MEET, pod)
    assert job.codes == [0, 0, 0], job.output
    # No variable gives the places within a host.
    assert [event["place"] for event in job.all("met")] == PLACES
    assert {event["sum"] for event in job.all("met")} == {3.0}


@pytest.mark.parametrize("flavor", ["mpich", "openmpi"])
def test_mpirun_starts_ranks_on_the_hosts_and_they_join_over_mpi(lab, tmp_path, flavor):
    _, folder = mpirun(flavor)
    path = tmp_path / "script.py"
    path.write_text(PRELUDE + MEET)
    env = environment(tmp_path, {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"})
    options = ["--mpi", "-p", PORT, "-np", 4, "-H", "node-a:2,node-b:2"]
    if flavor == "openmpi":
        options += ["--mpi-args", f"--prefix {folder.parent}"]
    job = lab.run(horovodrun(), *options, sys.executable, path, env=env, limit=LIMIT_SECONDS)
    assert job.returncode == 0, job.stdout + job.stderr
    met = Told(tmp_path, [], "").all("met")
    assert [event["place"] for event in met] == [
        [rank, 4, rank % 2, 2, rank // 2, 2] for rank in range(4)
    ]
    assert {(event["sum"], event["mpi"]) for event in met} == {(4.0, True)}


RAISE = """
atexit.register(lambda: say("ended", rank=rank))
hvd.init()
rank = hvd.rank()
total(1)
if rank == 1:
    raise KeyError("no such thing")
"""


@pytest.mark.parametrize("flavor", ["mpich", "openmpi"])
def test_a_rank_that_raises_ends_an_mpirun_job_on_all_hosts(lab, tmp_path, flavor):
    _, folder = mpirun(flavor)
    path = tmp_path / "script.py"
    path.write_text(PRELUDE + "import atexit\n" + RAISE)
    env = environment(tmp_path, {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"})
    options = ["--mpi", "-p", PORT, "-np", 2, "-H", "node-a:1,node-b:1"]
    if flavor == "openmpi":
        options += ["--mpi-args", f"--prefix {folder.parent}"]
    job = lab.run(horovodrun(), *options, sys.executable, path, env=env, limit=LIMIT_SECONDS)
    assert job.returncode != 0, job.stdout + job.stderr
    # Hydra puts its label wherever a read started, even in the middle of a line.
    assert "KeyError: 'no such thing'" in job.stderr.replace("[1] ", ""), job.stderr
    # The program's exit handlers still run.
    assert 1 in [event["rank"] for event in Told(tmp_path, [], "").all("ended")]


CALL = """
import os, socket, sys
import horovod

def where(raising):
    import numpy as np
    import horovod.raw as hvd
    hvd.init()
    total = hvd.allreduce(np.ones(1), op=hvd.Sum)[0]
    if raising and hvd.rank() == 1:
        raise KeyError("no such thing")
    return hvd.rank(), socket.gethostname(), float(total)

def run(raising):
    return horovod.run(where, (raising,), num_proc=2, hosts=sys.argv[1], ssh_port=int(sys.argv[2]),
                       use_mpi=True, mpi_args=sys.argv[3] or None)

print("results", run(False))
run(True)
"""


@pytest.mark.parametrize("flavor", ["mpich", "openmpi"])
def test_a_function_reaches_ranks_of_mpirun_on_other_hosts(lab, tmp_path, flavor):
    _, folder = mpirun(flavor)
    path = tmp_path / "call.py"
    path.write_text(CALL)
    env = environment(tmp_path, {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"})
    user = getpass.getuser()
    extra = f"--prefix {folder.parent}" if flavor == "openmpi" else ""
    hosts = f"{user}@node-a:1,{user}@node-b:1"
    job = lab.run(sys.executable, path, hosts, PORT, extra, env=env, limit=LIMIT_SECONDS)
    assert "results [(0, 'node-a', 2.0), (1, 'node-b', 2.0)]" in job.stdout, job.stdout + job.stderr
    assert job.stderr.splitlines()[-1] == "raised on rank 1 (node-b)", job.stderr
