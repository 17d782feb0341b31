"""Ranks that were started by a launcher other than `horovodrun`: their places, their rendezvous,
and their errors when one of them is lost."""

import os
import socket
import sys
from pathlib import Path

import pytest
from jobs import launcher
from launchers import mpirun, run

pytestmark = pytest.mark.timeout(60)

SECRET = "5e" * 32

MEET = """
hvd.init()
say("met", rank=hvd.rank(), place=place(), sum=total(1), mpi=hvd.mpi_enabled())
hvd.shutdown()
hvd.init()
say("again", rank=hvd.rank(), sum=total(2))
"""

# Ignores SIGTERM, with which the launcher may end all ranks before they have recorded the loss.
LOSE = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
hvd.init()
try:
    while True:
        total(1)
        if hvd.rank() == int(os.environ["VICTIM"]):
            if os.environ["HOW"] == "raise":
                raise KeyError("boom")
            os.kill(os.getpid(), signal.SIGKILL)
except HorovodInternalError as error:
    say("lost", rank=hvd.rank(), error=str(error).splitlines()[0])
"""


def step(rank, size, **further):
    """The variables of an `srun` task that Ronde reads."""
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_JOB_ID": "4711",
        **further,
    }


def pod(rank, size, **further):
    """The variables of a pod of an indexed Job, and those that the user sets."""
    return {
        "JOB_COMPLETION_INDEX": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": socket.gethostname(),
        **further,
    }


def assert_formed(job, size, mpi):
    assert set(job.codes) == {0}, job.output
    met = job.all("met")
    assert [event["place"] for event in met] == [
        [rank, size, rank, size, 0, 1] for rank in range(size)
    ]
    assert {event["sum"] for event in met} == {float(size)}
    assert {event["mpi"] for event in met} == {mpi}
    assert [event["sum"] for event in job.all("again")] == [2.0 * size] * size


MPI = """
hvd.init()
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
world = MPI.COMM_WORLD
say("mpi", rank=hvd.rank(), initialized=MPI.Is_initialized(),
    world=[world.Get_rank(), world.Get_size()],
    threads=[hvd.mpi_threads_supported(), MPI.Query_thread() == MPI.THREAD_MULTIPLE])
hvd.shutdown()
hvd.init(comm=world.Split(world.Get_rank() % 2, world.Get_rank()))
say("part", rank=world.Get_rank(), place=place(), sum=total(world.Get_rank()))
hvd.shutdown()
try:
    hvd.init(comm=[2, 0])
    say("listed", rank=world.Get_rank(), place=place(), sum=total(1))
    hvd.shutdown()
except ValueError as error:
    say("outside", rank=world.Get_rank(), error=str(error))
hvd.init()
say("whole", rank=hvd.rank(), sum=total(1))
if os.environ["FINALIZE"] == "theirs":
    MPI.Finalize()
"""


@pytest.mark.parametrize("flavor", ["mpich", "openmpi"])
def test_plain_mpirun_forms_a_world_over_mpi(tmp_path, flavor):
    pytest.importorskip("mpi4py")
    command, folder = mpirun(flavor)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    finalize = "theirs" if flavor == "mpich" else "ours"
    job = run(tmp_path, [*command, "-n", "3"], MPI, {"PATH": path, "FINALIZE": finalize})
    assert job.codes == [0], job.output
    for rank, event in enumerate(job.all("mpi")):
        assert event["initialized"] and event["world"] == [rank, 3]
        assert event["threads"][0] == event["threads"][1]
    parts = job.all("part")
    assert [event["place"] for event in parts] == [
        [0, 2, 0, 2, 0, 1],
        [0, 1, 0, 1, 0, 1],
        [1, 2, 1, 2, 0, 1],
    ]
    assert [event["sum"] for event in parts] == [2.0, 1.0, 2.0]
    listed = job.all("listed")
    assert [event["place"] for event in listed] == [[1, 2, 1, 2, 0, 1], [0, 2, 0, 2, 0, 1]]
    assert [event["sum"] for event in listed] == [2.0, 2.0]
    assert [event["rank"] for event in job.all("outside")] == [1]
    assert [event["sum"] for event in job.all("whole")] == [3.0, 3.0, 3.0]


SETS = """
hvd.init()
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from horovod.common.process_sets import ProcessSet, add_process_set

def sums(*process_sets):
    one = np.ones(1, dtype=np.float32)
    return [float(raw.allreduce(one, op=raw.Sum, process_set=each)[0]) if each.included() else None
            for each in process_sets]

def leave():
    # Waits until no rank needs this one any more.
    total(1)
    hvd.shutdown()

world = MPI.COMM_WORLD
halves = ProcessSet(world.Split(world.Get_rank() % 2, -world.Get_rank()))
some = ProcessSet(world.Create(world.Get_group().Incl([1, 2])))
listed = ProcessSet([0, 1])
hvd.shutdown()

hvd.init(world, process_sets=[halves, listed, some])
say("sets", rank=hvd.rank(), half=[halves.process_set_id, halves.ranks, halves.rank()],
    listed=listed.process_set_id, some=[some.process_set_id, some.ranks],
    sums=sums(halves, listed))
if some.ranks:
    say("some", rank=hvd.rank(), sum=sums(some)[0])
hvd.init(world, process_sets=[halves])
say("again", rank=hvd.rank(), half=halves.process_set_id)
leave()
say("left", rank=world.Get_rank(), half=halves.process_set_id)

for arguments in ({"comm": [0, 1, 2, 3], "process_sets": [halves]},
                  {"comm": [3, 2, 1, 0][:2], "process_sets": [halves]},
                  {"process_sets": [halves, ProcessSet(halves.mpi_comm)]},
                  {"process_sets": [ProcessSet(world)]}):
    try:
        hvd.init(**arguments)
        say("fine", rank=hvd.rank(), sum=sums(halves)[0])
        leave()
    except Exception as error:
        say("refused", rank=world.Get_rank(), kind=type(error).__name__, error=str(error))

# In a world of a subset, ranks are numbered within the subset.
if world.Get_rank() > 0:
    part = world.Create_group(world.Get_group().Excl([0]))
    pair = ProcessSet(part.Split(part.Get_rank() // 2, 0))
    hvd.init(part, process_sets=[pair])
    say("part", rank=hvd.rank(), pair=pair.ranks, sum=sums(pair)[0])
    leave()
hvd.init(process_sets="dynamic")
try:
    add_process_set(halves.mpi_comm)
except NotImplementedError as error:
    say("late", rank=hvd.rank(), error=str(error))
"""


@pytest.mark.parametrize("flavor", ["mpich", "openmpi"])
def test_communicators_become_process_sets(tmp_path, flavor):
    pytest.importorskip("mpi4py")
    command, folder = mpirun(flavor)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    job = run(tmp_path, [*command, "-n", "4"], SETS, {"PATH": path})
    assert job.codes == [0], job.output
    # Lists come first, then the sets of all ranks' communicators, ordered by their members.
    even, odd = [2, [0, 2]], [4, [1, 3]]
    events = job.all("sets")
    assert [each["half"] for each in events] == [[*even, 0], [*odd, 0], [*even, 1], [*odd, 1]]
    assert {each["listed"] for each in events} == {1}
    assert [each["some"] for each in events] == [
        [None, None],
        [3, [1, 2]],
        [3, [1, 2]],
        [None, None],
    ]
    assert [each["sums"] for each in events] == [[2, 2], [2, 2], [2, None], [2, None]]
    assert [each["sum"] for each in job.all("some")] == [2, 2]
    assert [each["half"] for each in job.all("again")] == [2, 4, 2, 4]
    assert [each["half"] for each in job.all("left")] == [None] * 4
    # A list of all ranks does not count as a subset.
    assert [each["sum"] for each in job.all("fine")] == [2] * 4
    refused = job.all("refused")
    assert len(refused) == 12
    for kind, words in [
        ("NotImplementedError", "need a communicator as comm, not a list of ranks"),
        ("ValueError", "process_sets entry number 0 is a duplicate"),
    ]:
        assert any(each["kind"] == kind and words in each["error"] for each in refused), refused
    assert [each["pair"] for each in job.all("part")] == [[0, 1], [0, 1], [2]]
    assert [each["sum"] for each in job.all("part")] == [2, 2, 1]
    assert len(job.all("late")) == 4


@pytest.mark.parametrize("flavor", ["mpich", "openmpi"])
def test_horovodrun_starts_ranks_with_mpirun_and_returns_its_exit_code(tmp_path, flavor):
    _, folder = mpirun(flavor)
    script = MEET + "hvd.shutdown()\nsys.exit(5 if os.environ.get('FAIL') else 0)\n"
    env = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    command = [launcher(), "--mpi", "-np", "2"]
    assert_formed(run(tmp_path, command, script, env), 2, mpi=True)
    failed = run(tmp_path, command, script, {**env, "FAIL": "1"})
    assert failed.codes == [5], failed.output


def test_under_mpirun_without_its_library_ranks_use_a_rendezvous_file(tmp_path):
    command, _ = mpirun("mpich")
    env = {"HOROVOD_CONTROLLER": "gloo"}
    assert_formed(run(tmp_path, [*command, "-n", "2"], MEET, env), 2, mpi=False)
    assert list((tmp_path / "runtime" / "ronde").iterdir()) == []


def test_under_open_mpi_the_survivors_name_the_killed_rank(tmp_path):
    command, folder = mpirun("openmpi")
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    env = {"PATH": path, "VICTIM": "1", "HOW": "kill"}
    job = run(tmp_path, [*command, "-n", "3"], LOSE, env)
    assert job.codes[0] != 0
    assert [event["rank"] for event in job.all("lost")] == [0, 2], job.output
    assert all(event["error"].startswith("lost rank 1 (") for event in job.all("lost"))


def test_ranks_of_torchrun_form_a_world_and_name_a_lost_rank(tmp_path):
    options = ["--nproc-per-node", "2", "--no-python"]
    command = [sys.executable, "-m", "torch.distributed.run", *options]
    job = run(tmp_path, command, MEET + LOSE, {"VICTIM": "1", "HOW": "kill"})
    assert job.codes != [0]
    assert [event["place"] for event in job.all("met")] == [[0, 2, 0, 2, 0, 1], [1, 2, 1, 2, 0, 1]]
    assert [event["sum"] for event in job.all("again")] == [4.0, 4.0]
    assert [event["error"][:13] for event in job.all("lost")] == ["lost rank 1 ("], job.output


def test_tasks_of_srun_form_a_world(tmp_path):
    assert_formed(run(tmp_path, [], MEET, [step(rank, 3) for rank in range(3)]), 3, mpi=False)
    alone = run(tmp_path, [], "hvd.init()\nsay('alone', place=place())", [step(0, 1)])
    assert [event["place"] for event in alone.all("alone")] == [[0, 1, 0, 1, 0, 1]]


@pytest.mark.parametrize(
    ("victim", "how", "transport", "words"),
    [
        (0, "kill", "auto", "its process is gone"),
        (0, "kill", "tcp", "lost"),
        (0, "raise", "auto", "boom"),
        (1, "kill", "auto", "its process has ended"),
        (1, "kill", "tcp", "its process has ended"),
        (1, "raise", "auto", "boom"),
    ],
)
def test_a_lost_rank_is_named_with_its_cause(tmp_path, victim, how, transport, words):
    further = {"VICTIM": str(victim), "HOW": how, "RONDE_TRANSPORT": transport}
    job = run(tmp_path, [], LOSE, [step(rank, 3, **further) for rank in range(3)])
    lost = job.all("lost")
    assert [event["rank"] for event in lost] == [rank for rank in range(3) if rank != victim]
    for event in lost:
        assert f"rank {victim} ({socket.gethostname()}, slot {victim})" in event["error"]
        assert words in event["error"]


def test_ranks_of_several_hosts_use_a_rendezvous_file_in_a_shared_directory(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    hosts = {"SLURM_STEP_NUM_NODES": "2", "RONDE_RENDEZVOUS_DIR": str(shared)}
    assert_formed(
        run(tmp_path, [], MEET, [step(rank, 2, **hosts) for rank in range(2)]), 2, mpi=False
    )
    assert list(shared.iterdir()) == []
    home = {"SLURM_STEP_NUM_NODES": "2", "HOME": str(tmp_path)}
    assert_formed(
        run(tmp_path, [], MEET, [step(rank, 2, **home) for rank in range(2)]), 2, mpi=False
    )
    assert (tmp_path / ".ronde").stat().st_mode & 0o777 == 0o700


def test_pods_with_a_secret_form_a_world_and_others_get_a_hint(tmp_path):
    with socket.socket() as free:
        free.bind(("", 0))
        port = str(free.getsockname()[1])
    given = {"RONDE_SECRET": SECRET, "RONDE_RENDEZVOUS_PORT": port}
    job = run(tmp_path, [], MEET, [pod(rank, 2, **given) for rank in range(2)])
    assert_formed(job, 2, mpi=False)
    brief = {"RONDE_JOIN_TIMEOUT_SECONDS": "1"}
    for further, words in [
        ({}, ["rank 1 of 2 was started by Kubernetes", "RONDE_SECRET", "openssl rand -hex 32"]),
        ({**given, **brief}, ["rank 1 did not find rank 0 within 1 s", f":{port}: Connection"]),
        ({"RONDE_SECRET": "short"}, ["RONDE_SECRET must be 64 hexadecimal digits"]),
    ]:
        alone = run(tmp_path, [], MEET, [pod(1, 2, **further)])
        assert alone.codes == [1]
        assert all(word in alone.output for word in words), alone.output


GLOO = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
config = json.loads(os.environ["TF_CONFIG"])
say("gloo", rank=dist.get_rank(), sum=value.item(), config=config)
dist.destroy_process_group()
"""


def test_programs_that_use_the_frameworks_own_modes_run_under_horovodrun(tmp_path):
    job = run(tmp_path, [launcher(), "-np", "2"], GLOO)
    assert job.codes == [0], job.output
    events = job.all("gloo")
    assert [each["sum"] for each in events] == [2.0, 2.0]
    configs = [each["config"] for each in events]
    workers = configs[0]["cluster"]["worker"]
    assert len(set(workers)) == 2 and all(worker.startswith("127.0.0.1:") for worker in workers)
    assert configs == [
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        for rank in range(2)
    ]


def test_a_missing_rank_is_named_and_a_stale_rendezvous_file_does_no_harm(tmp_path):
    stuck = [step(0, 2, RONDE_JOIN_TIMEOUT_SECONDS="1")]
    job = run(tmp_path, [], MEET, stuck)
    assert job.codes == [1]
    assert "1 of 2 ranks are still missing: rank 1;" in job.output
    (file,) = Path(tmp_path, "runtime", "ronde").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert_formed(run(tmp_path, [], MEET, [step(rank, 2) for rank in range(2)]), 2, mpi=False)
