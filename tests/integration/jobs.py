"""Starting real jobs with `horovodrun`, watching their ranks, and looking for what is left of them.

Ranks tell what happens to them with `say(event, **facts)`; times are the machine's monotonic clock,
so that those of different processes can be compared.
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
# Where no framework is needed: importing one takes longer than most tests.
RAW = "import numpy\nimport horovod.raw as hvd\n"
STARTED = 'say("started", pid=os.getpid(), job=os.environ.get("RONDE_JOB"))\n'


class Job:
    """One `horovodrun` with a script of ours; ends with the `with` block.

    `before` is what a rank does first, `api` what it imports as `hvd`; `prefix` comes before the
    launcher, `options` behind it.
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
        """The launcher's exit code."""
        try:
            return self.launcher.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {limit} s:\n{self.output()}") from None

    def output(self):
        """What the launcher and the ranks have written, standard output and error together."""
        return self._output.read_text(errors="replace")

    def events(self, rank):
        """What a rank has said so far."""
        file = self._folder / f"{rank}.jsonl"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return [json.loads(line) for line in lines]

    def said(self, rank, event):
        """The first event of this name, or None."""
        return next((said for said in self.events(rank) if said["event"] == event), None)

    def hear(self, event, ranks=None, limit=LIMIT_SECONDS):
        """Waits until ranks have said something; gives what they said, in their order."""
        ranks = range(self.size) if ranks is None else ranks

        def all_said():
            said = [self.said(rank, event) for rank in ranks]
            return said if None not in said else None

        return until(all_said, limit, lambda: f"no `{event}` from {list(ranks)}:\n{self.output()}")

    def pids(self):
        """The ranks' processes; call it when they have started."""
        return [self.said(rank, "started")["pid"] for rank in range(self.size)]

    def left(self):
        """Every process that carries this job's mark, or the launcher's own cookie."""
        marks = [f"{MARK}={self.mark}".encode()]
        for rank in range(self.size):
            said = self.said(rank, "started")
            if said is not None and said["job"]:
                marks.append(f"RONDE_JOB={said['job']}".encode())
        return sorted(pid for pid, env in environments() if any(mark in env for mark in marks))

    def assert_nothing_left(self, limit=5.0):
        """Fails if a process of the job is still there after a while."""
        until(lambda: not self.left(), limit, lambda: f"left behind: {self.left()}")


def launcher():
    """The command that starts jobs: the one in the path, or beside the interpreter."""
    path = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    found = shutil.which("horovodrun", path=path)
    assert found, "horovodrun is not in the path; install the package first"
    return found


def until(condition, limit, complaint):
    """Waits for a condition to become true and gives its value."""
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, complaint()
        time.sleep(0.01)


def environments():
    """The environment of every process that may be read, zombies excluded."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield int(folder.name), (folder / "environ").read_bytes().split(b"\0")
