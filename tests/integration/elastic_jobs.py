"""Elastic `horovodrun` jobs with a program that needs no framework.

Every step of the program is an allreduce and a commit. In the allreduce the ranks also agree on
whether to rejoin and whether to end. Each worker records events in a file named by its number.
"""

import json
import os
import subprocess
import sys
import uuid

from jobs import environments, launcher, until
from workers import events_of

PROGRAM = """
import json, os, sys, time
import numpy as np
import horovod.raw as hvd
from horovod import _native
from horovod.common.exceptions import HorovodInternalError, WorkerRemovedError

folder, worker = os.environ["SAY_FOLDER"], os.environ["RONDE_WORKER"]

def say(event, **facts):
    with open(f"{folder}/{worker}.jsonl", "a") as file:
        file.write(json.dumps({"event": event, **facts}) + "\\n")

def train(step):
    seen = 0
    step = int(hvd.broadcast(np.array([step]), 0, name="state")[0])
    _native.elastic_reached("state")
    say("world", rank=hvd.rank(), size=hvd.size(), step=step, pid=os.getpid())
    try:
        while True:
            update = _native.elastic_update(seen, 0.0)
            over = os.path.exists(f"{folder}/over")
            # An update about workers that are not ready yet is no reason to rejoin.
            ready = update is not None and update[1] & 3 != 0
            flags = np.array([ready, over], dtype=np.float64)
            meet, over = hvd.allreduce(flags, op=hvd.Sum, name="step")
            step += 1
            _native.elastic_reached("commit")
            if meet or over:
                return step, bool(over)
            time.sleep(0.01)
    except HorovodInternalError:
        return step, False

step, over = 0, False
while not over:
    try:
        hvd.init()
        step, over = train(step)
    except HorovodInternalError:
        pass
    except WorkerRemovedError as removed:
        print(removed, file=sys.stderr)
        sys.exit(0)
    hvd.shutdown()
say("over", step=step)
"""


class Job:
    """One launcher with a discovery script that prints the file `hosts`."""

    def __init__(self, folder, hosts, *options, prefix=(), **env):
        self._folder = folder
        self.mark = uuid.uuid4().hex
        self.list(hosts)
        (folder / "program.py").write_text(PROGRAM)
        output = (folder / "output.txt").open("w")
        script = f"cat {folder}/hosts"
        command = [*prefix, launcher(), "--host-discovery-script", script, *options]
        self.process = subprocess.Popen(
            [*command, sys.executable, str(folder / "program.py")],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "SAY_FOLDER": str(folder),
                "RONDE_TEST_MARK": self.mark,
                "RONDE_FLIGHT_RECORDER_DIR": "off",
                **env,
            },
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def list(self, hosts):
        (self._folder / "next").write_text(hosts)
        (self._folder / "next").rename(self._folder / "hosts")

    def output(self):
        return (self._folder / "output.txt").read_text(errors="replace")

    def said(self, worker):
        return events_of(self._folder, worker)

    def world(self, workers):
        """Waits until these workers are the world, in rank order; returns their last events."""

        def is_it():
            last = [[{}, *self.said(worker)][-1] for worker in workers]
            ranks = [(one.get("rank"), one.get("size")) for one in last]
            return last if ranks == [(n, len(workers)) for n in range(len(workers))] else None

        return until(is_it, 30, lambda: f"no world of {workers}:\n{self.output()}")

    def agents(self):
        """The PIDs of the agents, in the order in which they started."""
        entry = f"RONDE_TEST_MARK={self.mark}".encode()
        found = []
        for pid, env in environments():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    line = file.read().split(b"\0")
            except OSError:
                continue
            if entry in env and b"__ronde-agent" in line:
                found.append((int(line[2].rsplit(b"-", 1)[1]), pid))
        return [pid for _, pid in sorted(found)]

    def left(self):
        entry = f"RONDE_TEST_MARK={self.mark}".encode()
        return [pid for pid, env in environments() if entry in env]

    def status(self):
        """What `ronde status` reports about the job."""
        ronde = os.path.join(os.path.dirname(launcher()), "ronde")
        command = [ronde, "status", "--once", "--json", str(self.process.pid)]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

    def finish(self):
        (self._folder / "over").touch()
        code = self.process.wait(30)
        until(lambda: not self.left(), 5, lambda: f"left behind: {self.left()}")
        return code
