"""Ranks that are stopped while others wait for them.

A stopped process closes no connection. The launcher must name it wherever its peers wait. The job
must continue when the process is resumed, and end only if the user has set a limit for stalls.
`test_lab.py` covers frozen hosts.
"""

import os
import signal
from pathlib import Path

import pytest
from jobs import RAW, Job, until

pytestmark = pytest.mark.timeout(120)

TRAIN = """
OVER = os.path.join(os.environ["SAY_FOLDER"], "over")

def train(elements):
    tensor, over = numpy.ones(elements, numpy.float32), numpy.zeros(1, numpy.float32)
    for step in range(1_000_000):
        hvd.allreduce(tensor, name="gradient", op=hvd.Sum)
        over[0] = os.path.exists(OVER)
        if hvd.allreduce(over, name="over", op=hvd.Max)[0]:
            return
        if step == 2:
            say("training")

def come_late():
    say("training")
    while RANK == 1 and not os.path.exists(OVER):
        time.sleep(0.05)

"""
# A tensor of 64 MiB takes long enough that a signal usually arrives during its transfer.
PLACES = {
    "data plane": "hvd.init()\ntrain(16 << 20)\n",
    "negotiation": "hvd.init()\ntrain(4)\n",
    "barrier": "hvd.init()\ncome_late()\nhvd.barrier()\n",
    "init": "come_late()\nhvd.init()\nhvd.barrier()\n",
}
# The rank's process only starts a child, like a shell script, and the child is stopped.
CHILD = """
import os, subprocess, sys
if "IS_CHILD" not in os.environ:
    sys.exit(subprocess.call([sys.executable, *sys.argv], env={**os.environ, "IS_CHILD": "1"}))
"""


@pytest.mark.parametrize(
    ("place", "transport", "victim", "before"),
    [
        ("data plane", "auto", 1, ""),
        ("data plane", "tcp", 0, CHILD),
        ("negotiation", "auto", 0, ""),
        ("barrier", "auto", 1, CHILD),
        ("init", "auto", 1, ""),
        ("init", "auto", 1, CHILD),
    ],
)
def test_a_stopped_rank_is_named_wherever_others_wait_and_can_resume(
    tmp_path, place, transport, victim, before
):
    env = {"RONDE_TRANSPORT": transport}
    with Job(tmp_path, 2, TRAIN, PLACES[place], api=RAW, env=env, before=before) as job:
        job.hear("training")
        pid = job.pids()[victim]
        os.kill(pid, signal.SIGSTOP)
        name = f"rank {victim} (localhost, slot {victim})"
        until(lambda: f"{name} is stopped: process {pid} (" in job.output(), 50, job.output)
        assert f"`kill -CONT {pid}` on localhost resumes it" in job.output()
        assert job.launcher.poll() is None, job.output()
        os.kill(pid, signal.SIGCONT)
        until(lambda: f"{name} resumed after" in job.output(), 50, job.output)
        (tmp_path / "over").touch()
        assert job.wait() == 0, job.output()
        job.assert_nothing_left()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_the_stall_limit_ends_a_job_whose_rank_is_stopped_in_the_data_plane(tmp_path, transport):
    env = {"RONDE_TRANSPORT": transport}
    options = ("--stall-check-warning-time-seconds", "5")
    options += ("--stall-check-shutdown-time-seconds", "6")
    parts = (TRAIN, PLACES["data plane"])
    with Job(tmp_path, 2, *parts, api=RAW, env=env, options=options) as job:
        job.hear("training")
        os.kill(job.pids()[1], signal.SIGSTOP)
        assert job.wait() == 1, job.output()
        (error,) = [line for line in job.output().splitlines() if line.startswith("error: ")]
        assert error.startswith("error: rank 1 (localhost, slot 1) was stopped (SIGSTOP), process")
        assert "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS" in error
        assert "rank 0 failed because of it" in job.output()
        job.assert_nothing_left()


@pytest.fixture
def freezer():
    """Puts a process into its own cgroup; yields functions that freeze and thaw it."""
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    root = Path("/sys/fs/cgroup") if unified else Path("/sys/fs/cgroup/freezer")
    group = root / f"ronde-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be created here: {error}")
    knob, frozen, thawed = ("cgroup.freeze", "1", "0")
    if not unified:
        knob, frozen, thawed = ("freezer.state", "FROZEN", "THAWED")

    def freeze(pid):
        (group / "cgroup.procs").write_text(str(pid))
        (group / knob).write_text(frozen)

    def thaw():
        (group / knob).write_text(thawed)

    yield freeze, thaw
    thaw()
    for pid in (group / "cgroup.procs").read_text().split():
        (root / "cgroup.procs").write_text(pid)
    group.rmdir()


def test_a_rank_in_a_frozen_cgroup_is_named_and_can_resume(tmp_path, freezer):
    freeze, thaw = freezer
    with Job(tmp_path, 2, TRAIN, PLACES["data plane"], api=RAW) as job:
        job.hear("training")
        pid = job.pids()[1]
        freeze(pid)
        words = f"rank 1 (localhost, slot 1) is frozen: process {pid} ("
        until(lambda: words in job.output(), 50, job.output)
        thaw()
        until(lambda: "rank 1 (localhost, slot 1) resumed after" in job.output(), 50, job.output)
        (tmp_path / "over").touch()
        assert job.wait() == 0, job.output()
