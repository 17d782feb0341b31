"""Failures of real jobs, diagnosed from the event log without looking at any message text."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from elastic_jobs import Job as Elastic
from jobs import RAW, Job, launcher, until

import horovod

pytestmark = pytest.mark.timeout(60)


@dataclass(frozen=True)
class Cause:
    """Why a job ended: the reason, and the kind, rank and host of the first failure."""

    reason: str
    kind: str | None = None
    rank: int | None = None
    host: str | None = None


def events(path):
    """The events of a log, without a partially written last line."""
    path = Path(path)
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def of(log, name):
    return [event for event in log if event["event"] == name]


def cause(log):
    """Finds the cause in a log like a user's program would: from names and numbers, not texts."""
    verdict = log[-1]["verdict"]
    first = verdict["first"]
    if first is None:
        return Cause(verdict["reason"])
    kind = first["cause"]["kind"]
    # The rank that waited in vain reports the stall, but the late rank is the cause.
    for stall in of(log, "stalled"):
        if kind == "stalled" and first["rank"] in stall["waiting"]:
            (late,) = stall["late"]
            world = {member["rank"]: member for member in of(log, "world_formed")[-1]["members"]}
            return Cause(verdict["reason"], "stalled", late, world[late]["host"])
    return Cause(verdict["reason"], kind, first["rank"], first["host"])


def losses(log):
    """The workers lost during the job: kind of loss, rank and host."""
    return [
        (event["cause"]["kind"], event["rank"], event["host"]) for event in of(log, "worker_lost")
    ]


def check(log):
    """Checks what must hold for the log of every job that has ended."""
    assert [event["number"] for event in log] == list(range(len(log)))
    times = [event["time"] for event in log]
    assert times == sorted(times)
    assert log[0]["event"] == "job_started" and log[-1]["event"] == "job_ended"
    started = {event["worker"]: event["pid"] for event in of(log, "worker_started")}
    for event in log:
        if event["event"] in ("worker_joined", "worker_finished", "worker_resumed"):
            assert event["worker"] in started, event
    return log


@dataclass(frozen=True)
class Case:
    """What rank 1 does while rank 0 trains, and the cause that the log must show."""

    name: str
    script: str
    cause: Cause
    code: int
    options: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


SCRIPT = """
import os, signal, sys, time
import numpy as np
import horovod.raw as hvd

hvd.init()
while hvd.rank() == 0:
    hvd.allreduce(np.ones(1000, np.float32), name="gradient")
hvd.allreduce(np.ones(1000, np.float32), name="gradient")
"""
STALL = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
STOPPED = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "6"}


def failed(kind):
    return Cause("rank_failed", kind, 1, "localhost")


CASES = [
    Case("exception", "{}['loss']", failed("exception"), 1),
    Case("exit code", "sys.exit(7)", failed("exit_code"), 7),
    Case("signal", "os.kill(os.getpid(), signal.SIGKILL)", failed("signal"), 137),
    Case("crash", "os.abort()", failed("signal"), 134),
    Case("stall", "time.sleep(60)", failed("stalled"), 1, env=STALL),
    Case("stop", "os.kill(os.getpid(), signal.SIGSTOP)", failed("halted"), 1, env=STOPPED),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_the_log_of_a_failed_rank_shows_the_cause(tmp_path, case):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT + textwrap.dedent(case.script))
    options = ["-np", "2", "--event-log", "events.jsonl", *case.options]
    done = run(tmp_path, options, [sys.executable, str(path)], case.env)
    assert done.returncode == case.code, done.stderr
    log = check(events(tmp_path / "events.jsonl"))
    assert log[-1]["exit_code"] == case.code
    assert cause(log) == case.cause
    (world,) = of(log, "world_formed")
    assert [member["rank"] for member in world["members"]] == [0, 1]
    assert (len(of(log, "worker_joined")), world["newcomers"]) == (2, 2)
    if case.name == "stop":
        (halted,) = of(log, "worker_halted")
        assert (halted["rank"], halted["process"]["state"]) == (1, "stopped")
        assert halted["process"]["pid"] == of(log, "worker_started")[1]["pid"]
    if case.name == "signal":
        assert of(log, "worker_lost")[0]["signal"] == signal.SIGKILL


def test_the_log_shows_that_the_program_is_missing(tmp_path):
    done = run(tmp_path, ["-np", "1", "--event-log", "events.jsonl"], ["./not-there"])
    assert done.returncode == 127, done.stderr
    log = check(events(tmp_path / "events.jsonl"))
    assert cause(log) == Cause("rank_failed", "not_started", 0, "localhost")
    assert of(log, "worker_started") == []


def test_the_log_names_a_lost_host(tmp_path):
    log = tmp_path / "events.jsonl"
    options = ("-H", "localhost:1,127.0.0.2:1", "--event-log", str(log))
    with Job(tmp_path, 2, "hvd.init(); say('in'); time.sleep(60)", api=RAW, options=options) as job:
        job.hear("in")
        # The agent is the parent process of its ranks.
        status = Path(f"/proc/{job.pids()[1]}/status").read_text()
        (agent,) = [line.split()[1] for line in status.splitlines() if line.startswith("PPid:")]
        os.kill(int(agent), signal.SIGKILL)
        assert job.wait() == 1, job.output()
    log = check(events(log))
    assert cause(log) == Cause("host_lost", "host_lost", 1, "127.0.0.2")
    assert [event["host"] for event in of(log, "host_lost")] == ["127.0.0.2"]


def test_the_log_of_an_interrupted_job_shows_the_signal(tmp_path):
    log = tmp_path / "events.jsonl"
    options = ("--event-log", str(log))
    with Job(tmp_path, 2, "hvd.init(); say('in'); time.sleep(60)", api=RAW, options=options) as job:
        job.hear("in")
        job.launcher.send_signal(signal.SIGINT)
        assert job.wait() == 130, job.output()
    log = check(events(log))
    assert cause(log) == Cause("interrupted")
    assert log[-1]["verdict"]["signal"] == signal.SIGINT
    assert len(of(log, "worker_stopped")) == 2 and losses(log) == []


def test_the_log_of_a_recovery_shows_the_loss_and_the_duration(tmp_path):
    path = tmp_path / "events.jsonl"
    options = ["-np", "3", "--min-np", "1", "--event-log", str(path)]
    with Elastic(tmp_path, "localhost:2\n127.0.0.2:1\n", *options) as job:
        world = job.world([0, 1, 2])
        os.kill(job.agents()[1], signal.SIGKILL)
        job.world([0, 1])
        os.kill(world[1]["pid"], signal.SIGKILL)
        job.world([0])
        until(lambda: len(of(events(path), "recovered")) == 2, 30, job.output)
        assert job.finish() == 0, job.output()
    log = check(events(path))
    assert cause(log) == Cause("done")
    assert losses(log) == [("host_lost", 2, "127.0.0.2"), ("signal", 1, "localhost")]
    assert [event["host"] for event in of(log, "host_lost")] == ["127.0.0.2"]
    worlds = [[member["worker"] for member in it["members"]] for it in of(log, "world_formed")]
    assert worlds == [[0, 1, 2], [0, 1], [0]]
    for recovered, ranks in zip(of(log, "recovered"), (2, 1)):
        assert recovered["ranks"] == ranks
        assert 0 < recovered["met_seconds"] <= recovered["state_seconds"]
        assert recovered["state_seconds"] <= recovered["commit_seconds"] < 30


def test_the_log_of_a_job_that_hits_the_reset_limit_shows_the_last_loss(tmp_path):
    path = tmp_path / "events.jsonl"
    options = ["-np", "2", "--min-np", "1", "--reset-limit", "0", "--event-log", str(path)]
    with Elastic(tmp_path, "localhost:2\n", *options) as job:
        world = job.world([0, 1])
        os.kill(world[1]["pid"], signal.SIGKILL)
        assert job.process.wait(30) == 137, job.output()
    log = check(events(path))
    assert cause(log) == Cause("reset_limit", "signal", 1, "localhost")


def test_the_log_of_a_job_without_enough_hosts_shows_the_timeout(tmp_path):
    options = ["-np", "2", "--host-discovery-script", "exit 3", "--elastic-timeout", "3"]
    done = run(tmp_path, [*options, "--event-log", "events.jsonl"], ["true"])
    assert done.returncode == 1, done.stderr
    log = check(events(tmp_path / "events.jsonl"))
    assert cause(log) == Cause("timed_out")
    assert len(of(log, "hosts_unknown")) == 1
    (few,) = of(log, "too_few_workers")
    assert (few["there"], few["needed"], few["timeout_seconds"]) == (0, 2, 3)


def test_a_follower_sees_the_same_events_as_the_log(tmp_path):
    path, runtime = tmp_path / "events.jsonl", tmp_path / "runtime"
    runtime.mkdir()
    env = {"XDG_RUNTIME_DIR": str(runtime)}
    options = ("--event-log", str(path), "--stall-check-warning-time-seconds", "1")
    late = """
        hvd.init()
        if RANK == 1:
            while not os.path.exists(os.path.join(os.environ["SAY_FOLDER"], "over")):
                time.sleep(0.01)
        hvd.allreduce(numpy.ones(4), name="late")
    """
    with Job(tmp_path, 2, late, api=RAW, env=env, options=options) as job:
        until(lambda: of(events(path), "world_formed"), 40, job.output)
        ronde = shutil.which("ronde", path=str(Path(launcher()).parent))
        with subprocess.Popen(
            [ronde, "status", "--follow", "--json"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        ) as follower:
            seen = []
            for line in follower.stdout:
                seen.append(json.loads(line))
                if seen[-1]["event"] == "stalled":
                    (tmp_path / "over").touch()
        assert follower.returncode == 0
        assert job.wait() == 0, job.output()
    assert seen == check(events(path))
    (stall,) = of(seen, "stalled")
    assert (stall["waiting"], stall["late"], stall["tensor"]) == ([0], [1], "allreduce.late")
    assert stall["seconds"] >= 1


def test_horovod_run_writes_an_event_log_too(tmp_path):
    path = tmp_path / "events.jsonl"
    with pytest.raises(RuntimeError):
        horovod.run(os._exit, args=(5,), num_proc=1, event_log=str(path))
    assert cause(check(events(path))) == Cause("rank_failed", "exit_code", 0, "localhost")


def run(folder, options, command, env=None):
    return subprocess.run(
        [launcher(), *options, *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=50,
        env={**os.environ, "RONDE_FLIGHT_RECORDER_DIR": "off", **(env or {})},
    )
