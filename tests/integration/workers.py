"""Starting elastic jobs with the real launcher, and hearing what their workers say.

The hosts are names of this machine, which a test writes into the file that the discovery script
prints. Workers tell what happens to them by their number, which they keep for life.
"""

import json
import os
import subprocess
from pathlib import Path

from jobs import LIMIT_SECONDS, launcher, until


def heard(folder, worker):
    """All that a worker has said, in order; a line that is being written does not count."""
    file = Path(folder) / f"{worker}.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


class Workers:
    """An elastic job, and what its workers say; ends with the `with` block."""

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
        # The guardian ends what is left of the job.
        self.process.kill()
        self.process.wait()

    def offer(self, hosts):
        """What the discovery script prints from now on."""
        fresh = self._folder / "hosts.new"
        fresh.write_text("".join(f"{host}\n" for host in hosts))
        fresh.replace(self._folder / "hosts.txt")

    def output(self):
        """What the launcher and the workers have written."""
        return self._output.read_text(errors="replace")

    def said(self, worker, event):
        """All that a worker has said of this kind."""
        return [each for each in heard(self._folder, worker) if each["event"] == event]

    def world(self, worker, size):
        """Waits until a worker trains in a world of this size, and gives what it said of it."""

        def found():
            worlds = self.said(worker, "world")
            return worlds and worlds[-1]["size"] == size and worlds[-1]

        return self.until(found, f"worker {worker} in a world of {size}")

    def steps(self, worker, more):
        """Waits for so many more steps of a worker."""
        enough = len(self.said(worker, "step")) + more
        self.until(lambda: len(self.said(worker, "step")) >= enough, f"steps of {worker}")

    def late(self):
        """Which ranks are late, and for how many others, as `ronde status` tells."""
        told = subprocess.run(
            [Path(launcher()).parent / "ronde", "status", "--once", "--json"],
            env={**os.environ, "XDG_RUNTIME_DIR": str(self._runtime)},
            capture_output=True,
            text=True,
            check=False,
        )
        late = json.loads(told.stdout)["late"] if told.returncode == 0 else []
        return [{name: each[name] for name in ("rank", "waiting_ranks")} for each in late]

    def wait(self):
        """The launcher's exit code."""
        try:
            return self.process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running:\n{self.output()}") from None

    def stop(self):
        """Asks the training to end."""
        (self._folder / "stop").touch()

    def until(self, condition, what):
        """Waits for something; fails at once if the job ends before."""

        def holds():
            ended = self.process.poll() is not None
            value = condition()
            assert value or not ended, f"ended before {what}:\n{self.output()}"
            return value

        return until(holds, LIMIT_SECONDS, lambda: f"waiting for {what}:\n{self.output()}")
