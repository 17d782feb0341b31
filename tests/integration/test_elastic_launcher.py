"""Elastic jobs of `horovodrun` with a program that needs no framework: hosts come and go for real.

Every step of the program is an allreduce, in which the ranks also agree whether to meet again and
whether to end, and each is a commit. What the workers say lies in files by their numbers.
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid

import pytest
from jobs import environments, launcher, until
from lab import Lab, why_not
from workers import heard

pytestmark = pytest.mark.timeout(60)

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
            # Of those who are not ready yet, the notice alone is no reason to meet.
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
        return heard(self._folder, worker)

    def world(self, workers):
        """Waits until these are the world, in rank order; gives what each has said of it."""

        def is_it():
            said = [[{}, *self.said(worker)][-1] for worker in workers]
            ranks = [(one.get("rank"), one.get("size")) for one in said]
            return said if ranks == [(n, len(workers)) for n in range(len(workers))] else None

        return until(is_it, 30, lambda: f"no world of {workers}:\n{self.output()}")

    def agents(self):
        """The agents' processes, in the order of their starts."""
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
        """What those see who watch the job."""
        ronde = os.path.join(os.path.dirname(launcher()), "ronde")
        command = [ronde, "status", "--once", "--json", str(self.process.pid)]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

    def finish(self):
        (self._folder / "over").touch()
        code = self.process.wait(30)
        until(lambda: not self.left(), 5, lambda: f"left behind: {self.left()}")
        return code


def test_training_outlives_ranks_hosts_and_the_host_of_rank_0(tmp_path):
    options = ["-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "1", "1"]
    with Job(tmp_path, "localhost:2\n", *options) as job:
        first = job.world([0, 1])
        os.kill(first[1]["pid"], signal.SIGKILL)
        alone = job.world([0])
        assert alone[0]["pid"] == first[0]["pid"], "survivors are not started again"
        # When the host has rested, its free slot is used again.
        again = job.world([0, 2])
        assert again[0]["step"] == again[1]["step"] > alone[0]["step"]
        job.list("localhost:2\n127.0.0.2:1\n")
        three = job.world([0, 2, 3])
        ranks = job.status()["ranks"]
        assert [rank["host"] for rank in ranks] == ["localhost", "localhost", "127.0.0.2"]
        assert [rank["pid"] for rank in ranks] == [said["pid"] for said in three]
        os.kill(job.agents()[0], signal.SIGKILL)
        last = job.world([3])
        assert last[0]["pid"] == three[2]["pid"] and last[0]["step"] >= three[0]["step"]
        assert job.finish() == 0, job.output()
        output = job.output()
        for text in (
            "[ronde] lost rank 1 (localhost, slot 1): was killed by signal 9 (SIGKILL)\n",
            "[ronde] recovered with 1 rank: they met after ",
            "[ronde] host `localhost` may be used again\n",
            "[ronde] found host `127.0.0.2` with 1 slot\n",
            "[ronde] lost host `localhost`: its agent was killed by signal 9 (SIGKILL)",
        ):
            assert text in output, output


def test_a_host_that_is_taken_out_or_told_to_stop_loses_no_step(tmp_path):
    hosts = "localhost:1\n127.0.0.2:1\n127.0.0.3:1\n"
    with Job(tmp_path, hosts, "-np", "3", "--min-np", "1") as job:
        job.world([0, 1, 2])
        job.list("localhost:1\n127.0.0.3:1\n")
        job.world([0, 2])
        os.kill(job.agents()[-1], signal.SIGTERM)
        job.world([0])
        assert job.finish() == 0, job.output()
        output = job.output()
        assert "lost" not in output, output
        for host in ("127.0.0.2", "127.0.0.3"):
            assert f"{host}[0] has been removed from elastic job: its host is not" in output
        assert "the agent on host `127.0.0.3` was told to stop" in output


def test_a_stopped_rank_is_lost_and_the_others_go_on(tmp_path):
    options = ["-np", "2", "--min-np", "1"]
    with Job(tmp_path, "localhost:2\n", *options, RONDE_ELASTIC_STOPPED_SECONDS="1") as job:
        said = job.world([0, 1])
        begin = time.monotonic()
        os.kill(said[0]["pid"], signal.SIGSTOP)
        job.world([1])
        assert time.monotonic() - begin < 10
        assert job.finish() == 0, job.output()
        assert "rank 0 (localhost, slot 0): was stopped, as by SIGSTOP, for 1 s" in job.output()


NO_LAB = why_not()


@pytest.mark.skipif(NO_LAB is not None, reason=str(NO_LAB))
def test_a_host_is_lost_with_its_cable_and_another_takes_its_place(tmp_path):
    with Lab(tmp_path, 3, network="10.81.0") as lab:
        first, second, _ = lab.hosts
        options = ["-np", "2", "--min-np", "1", "-p", str(second.port)]
        prefix = first.prefix(tmp_path)
        with Job(tmp_path, "node-a:1\nnode-b:1\n", *options, prefix=prefix) as job:
            before = job.world([0, 1])
            begin = time.monotonic()
            second.unplug()
            alone = job.world([0])
            assert time.monotonic() - begin < 5
            assert alone[0]["pid"] == before[0]["pid"]
            job.list("node-a:1\nnode-b:1\nnode-c:1\n")
            job.world([0, 2])
            assert job.finish() == 0, job.output()
            output = job.output()
            assert "[ronde] lost host `node-b`: it does not answer any more" in output
            assert "[ronde] recovered with 1 rank: they met after " in output
