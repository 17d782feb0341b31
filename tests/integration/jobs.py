"""Starts real jobs with `horovodrun`, observes their ranks, and finds processes left behind.

Ranks record events with `say(event, **facts)`. Times come from the machine's monotonic clock, so
that times of different processes can be compared.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from contextlib import suppress
from pathlib import Path

MARK = "RONDE_TEST_MARK"
LIMIT_SECONDS = 50

PRELUDE = """
import json, os, signal, sys, threading, time

RANK = int(os.environ["HOROVOD_RANK"])

def say(event, **facts):
    line = json.dumps({"event": event, "time": time.monotonic(), **facts})
    with open(os.path.join(os.environ["SAY_FOLDER"], f"{RANK}.jsonl"), "a") as file:
        file.write(line + "\\n")

"""
TORCH = "import torch\nimport horovod.torch as hvd\n"
# For scripts without a framework: importing one takes longer than most tests.
RAW = "import numpy\nimport horovod.raw as hvd\n"
STARTED = 'say("started", pid=os.getpid(), job=os.environ.get("RONDE_JOB"))\n'


class Job:
    """One `horovodrun` with a script; killed at the end of the `with` block.

    `before` is code that each rank runs first, `api` the import that defines `hvd`; `prefix` goes
    before the launcher on the command line, `options` after it.
    """

    def __init__(self, folder, size, *parts, env=None, before="", api=TORCH, prefix=(), options=()):
        self.size = size
        self.mark = uuid.uuid4().hex
        self._folder = Path(folder)
        path = self._folder / "script.py"
        prelude = before + PRELUDE + api + STARTED
        path.write_text(prelude + "".join(map(textwrap.dedent, parts)))
        self._output = self._folder / "output.txt"
        with self._output.open("w") as output:
            self.launcher = subprocess.Popen(
                [*prefix, launcher(), "-np", str(size), *options, sys.executable, str(path)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "SAY_FOLDER": str(folder),
                    "RONDE_FLIGHT_RECORDER_DIR": str(self._folder / "flight"),
                    MARK: self.mark,
                    **(env or {}),
                },
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.launcher.kill()
        self.launcher.wait()

    def wait(self, limit=LIMIT_SECONDS):
        """Waits for the launcher to end; returns its exit code."""
        try:
            return self.launcher.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {limit} s:\n{self.output()}") from None

    def output(self):
        """The standard output and standard error of the launcher and the ranks, combined."""
        return self._output.read_text(errors="replace")

    def events(self, rank):
        """The events that a rank has recorded so far."""
        file = self._folder / f"{rank}.jsonl"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return [json.loads(line) for line in lines]

    def said(self, rank, event):
        """A rank's first event of this name, or None."""
        return next((each for each in self.events(rank) if each["event"] == event), None)

    def hear(self, event, ranks=None, limit=LIMIT_SECONDS):
        """Waits until these ranks have recorded an event; returns it for each rank, in order."""
        ranks = range(self.size) if ranks is None else ranks

        def all_said():
            events = [self.said(rank, event) for rank in ranks]
            return events if None not in events else None

        return until(all_said, limit, lambda: f"no `{event}` from {list(ranks)}:\n{self.output()}")

    def pids(self):
        """The PIDs of the ranks; call it after they have started."""
        return [self.said(rank, "started")["pid"] for rank in range(self.size)]

    def left(self):
        """Every process that has this job's mark or the launcher's cookie in its environment."""
        marks = [f"{MARK}={self.mark}".encode()]
        for rank in range(self.size):
            started = self.said(rank, "started")
            if started is not None and started["job"]:
                marks.append(f"RONDE_JOB={started['job']}".encode())
        return sorted(pid for pid, env in environments() if any(mark in env for mark in marks))

    def assert_nothing_left(self, limit=5.0):
        """Fails if a process of the job still exists after `limit` seconds."""
        until(lambda: not self.left(), limit, lambda: f"left behind: {self.left()}")


def launcher():
    """The path of `horovodrun`: from PATH, or next to the interpreter."""
    path = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    found = shutil.which("horovodrun", path=path)
    assert found, "horovodrun is not in PATH; install the package first"
    return found


def until(condition, limit, complaint):
    """Waits for a condition to become true and returns its value."""
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, complaint()
        time.sleep(0.01)


def environments():
    """The PID and environment of every process that we may read, except zombies."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield int(folder.name), (folder / "environ").read_bytes().split(b"\0")
