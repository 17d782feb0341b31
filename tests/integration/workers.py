"""Starts elastic jobs with the real launcher and reads the events that their workers record.

The hosts are names of this machine; a test writes them to the file that the discovery script
prints. Each worker writes events to a file named after its worker number, which never changes.
"""

import json
import os
import subprocess
from pathlib import Path

from jobs import LIMIT_SECONDS, launcher, until


def events_of(folder, worker):
    """All events of a worker, in order, without a partially written last line."""
    file = Path(folder) / f"{worker}.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


class Workers:
    """An elastic job and the events of its workers; killed at the end of the `with` block."""

    def __init__(self, folder, hosts, options, command, env=None):
        self._folder = Path(folder)
        self._runtime = self._folder / "runtime"
        self._runtime.mkdir(mode=0o700)
        self._script = self._folder / "discover.sh"
        self._script.write_text(f'#!/bin/sh\ncat "{self._folder}/hosts.txt"\n')
        self._script.chmod(0o755)
        self.offer(hosts)
        self._output = self._folder / "output.txt"
        found = ["--host-discovery-script", str(self._script)]
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [launcher(), *options, *found, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "SAY_FOLDER": str(folder),
                    "RONDE_FLIGHT_RECORDER_DIR": str(self._folder / "flight"),
                    "XDG_RUNTIME_DIR": str(self._runtime),
                    **(env or {}),
                },
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # The guardian ends the remaining processes of the job.
        self.process.kill()
        self.process.wait()

    def offer(self, hosts):
        """Sets the hosts that the discovery script prints from now on."""
        fresh = self._folder / "hosts.new"
        fresh.write_text("".join(f"{host}\n" for host in hosts))
        fresh.replace(self._folder / "hosts.txt")

    def output(self):
        """The output of the launcher and the workers."""
        return self._output.read_text(errors="replace")

    def said(self, worker, event):
        """All events of this name from a worker."""
        return [each for each in events_of(self._folder, worker) if each["event"] == event]

    def world(self, worker, size):
        """Waits until a worker trains in a world of this size; returns its event for that world."""

        def found():
            worlds = self.said(worker, "world")
            return worlds and worlds[-1]["size"] == size and worlds[-1]

        return self.until(found, f"worker {worker} in a world of {size}")

    def steps(self, worker, more):
        """Waits until a worker has done this many more steps."""
        enough = len(self.said(worker, "step")) + more
        self.until(lambda: len(self.said(worker, "step")) >= enough, f"steps of {worker}")

    def late(self):
        """Which ranks are late and how many wait for each, according to `ronde status`."""
        status = subprocess.run(
            [Path(launcher()).parent / "ronde", "status", "--once", "--json"],
            env={**os.environ, "XDG_RUNTIME_DIR": str(self._runtime)},
            capture_output=True,
            text=True,
            check=False,
        )
        late = json.loads(status.stdout)["late"] if status.returncode == 0 else []
        return [{name: each[name] for name in ("rank", "waiting_ranks")} for each in late]

    def wait(self):
        """Waits for the launcher to end; returns its exit code."""
        try:
            return self.process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running:\n{self.output()}") from None

    def stop(self):
        """Tells the training to end."""
        (self._folder / "stop").touch()

    def until(self, condition, what):
        """Waits for a condition; fails at once if the job ends first."""

        def holds():
            ended = self.process.poll() is not None
            value = condition()
            assert value or not ended, f"ended before {what}:\n{self.output()}"
            return value

        return until(holds, LIMIT_SECONDS, lambda: f"waiting for {what}:\n{self.output()}")
