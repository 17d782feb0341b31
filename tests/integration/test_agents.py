"""Agents that dial in (`ronde agent --join`) from three hosts of a lab, without ssh."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import pytest
from elastic_jobs import PROGRAM
from jobs import until
from lab import Lab, horovodrun, inside, why_not
from workers import events_of

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

PATIENCE = float(os.environ.get("RONDE_TEST_PATIENCE", "1"))
PORT = 4000
KEY = "5" * 64

FIXED = """
import json, os, socket, time
import numpy as np
import horovod.raw as hvd

hvd.init()
total = hvd.allreduce(np.ones(3), op=hvd.Sum)
facts = {"rank": hvd.rank(), "host": socket.gethostname(), "pid": os.getpid()}
with open(os.path.join(os.environ["SAY_FOLDER"], f"{hvd.rank()}.jsonl"), "a") as file:
    file.write(json.dumps({"event": "met", "total": float(total[0]), **facts}) + "\\n")
if os.environ.get("STAY"):
    while True:
        hvd.allreduce(np.ones(3), op=hvd.Sum)
        time.sleep(0.01)
"""


def ronde():
    return os.path.join(os.path.dirname(horovodrun()), "ronde")


class Dialed:
    """A launcher on the first host of a lab that waits for agents, and its agents."""

    def __init__(self, folder, lab, program, *options, **env):
        self.folder, self.lab = folder, lab
        self.log = folder / "events.jsonl"
        (folder / "program.py").write_text(program)
        self.key = folder / "key"
        self.key.write_text(KEY)
        self.key.chmod(0o600)
        self.processes = []
        at = ["--listen", f"{lab.hosts[0].address}:{PORT}", "--key-file", str(self.key)]
        command = [horovodrun(), *options, *at, "--event-log", str(self.log)]
        command += [sys.executable, str(folder / "program.py")]
        facts = {"SAY_FOLDER": str(folder), "RONDE_FLIGHT_RECORDER_DIR": "off"}
        with (folder / "output.txt").open("w") as output:
            self.launcher = lab.start(
                *command, env={**facts, **env}, stdout=output, stderr=subprocess.STDOUT
            )
        self.processes.append(self.launcher)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def agent(self, host, *options):
        """Starts an agent on a host, like a scheduler would."""
        join = f"{self.lab.hosts[0].address}:{PORT}"
        command = [ronde(), "agent", "--join", join, "--key-file", str(self.key), *options]
        with (self.folder / f"{host.name}.txt").open("a") as output:
            process = subprocess.Popen(
                [*host.prefix(), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def output(self):
        texts = sorted(self.folder.glob("*.txt"))
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')}" for path in texts)

    def events(self, name):
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in events if event["event"] == name]

    def until(self, condition):
        return until(condition, 40 * PATIENCE, self.output)

    def wait(self):
        return self.launcher.wait(40 * PATIENCE)

    def worlds(self):
        return [sorted(one["host"] for one in it["members"]) for it in self.events("world_formed")]


@pytest.fixture(name="lab")
def _lab(tmp_path):
    with Lab(tmp_path, 3, network="10.78.9") as lab:
        yield lab


def test_three_agents_that_dial_in_run_a_fixed_job(tmp_path, lab):
    with Dialed(tmp_path, lab, FIXED, "--agents", "3", "-np", "4") as job:
        agents = [
            job.agent(host, "--slots", slots)
            for host, slots in zip(lab.hosts, ("2", "1", "1"), strict=True)
        ]
        assert job.wait() == 0, job.output()
        events = [events_of(tmp_path, rank)[0] for rank in range(4)]
        assert {one["total"] for one in events} == {4.0}
        assert sorted(one["host"] for one in events) == ["node-a", "node-a", "node-b", "node-c"]
        assert "waiting for 3 agents to connect" in job.output()
        assert [agent.wait(20 * PATIENCE) for agent in agents] == [0, 0, 0], job.output()
        assert {it["source"] for it in job.events("host_found")} == {"dialed_in"}


def test_a_fixed_job_ends_when_an_agent_is_killed_and_names_its_host(tmp_path, lab):
    options = ("--agents", "3", "-np", "3")
    with Dialed(tmp_path, lab, FIXED, *options, STAY="1") as job:
        for host in lab.hosts:
            job.agent(host, "--slots", "1")
        job.until(lambda: all(events_of(tmp_path, rank) for rank in range(3)))
        lab.hosts[2].signal(signal.SIGKILL)
        assert job.wait() == 1, job.output()
        verdict = job.events("job_ended")[0]["verdict"]
        assert verdict["reason"] == "host_lost", verdict
        assert "lost host `node-c`" in job.output()
        # No process of the job is left on any host.
        for host in lab.hosts:
            job.until(lambda host=host: inside(host.sshd.pid) == [host.sshd.pid])


def test_agents_of_an_elastic_job_may_join_late_leave_and_return(tmp_path, lab):
    first, second, third = lab.hosts
    options = ("--agents", "1", "-np", "1", "--min-np", "1")
    with Dialed(tmp_path, lab, PROGRAM, *options) as job:
        job.agent(first, "--slots", "1")
        job.until(lambda: job.worlds()[-1:] == [["node-a"]])
        job.agent(second, "--slots", "1")
        leaver = job.agent(third, "--slots", "1")
        all_hosts = ["node-a", "node-b", "node-c"]
        job.until(lambda: job.worlds()[-1:] == [all_hosts])
        # One host dies without notice.
        second.signal(signal.SIGKILL)
        job.until(lambda: job.worlds()[-1:] == [["node-a", "node-c"]])
        lost = job.events("worker_lost")[-1]
        assert (lost["host"], lost["cause"]["kind"]) == ("node-b", "host_lost"), lost
        # A new agent starts there: the host is accepted like a new one.
        job.agent(second, "--slots", "1")
        job.until(lambda: job.worlds()[-1:] == [all_hosts])
        # One agent gets SIGTERM and leaves in order.
        os.killpg(leaver.pid, signal.SIGTERM)
        job.until(lambda: job.worlds()[-1:] == [["node-a", "node-b"]])
        (tmp_path / "over").touch()
        assert job.wait() == 0, job.output()
        assert job.events("job_ended")[0]["verdict"]["reason"] == "done"
        for host in lab.hosts:
            job.until(lambda host=host: inside(host.sshd.pid) == [host.sshd.pid])


def test_missing_agents_end_the_wait_with_an_error(tmp_path, lab):
    options = ("--agents", "2", "-np", "2", "--start-timeout", "4")
    with Dialed(tmp_path, lab, FIXED, *options) as job:
        job.agent(lab.hosts[0], "--slots", "1")
        assert job.wait() == 1, job.output()
        expected = (
            "1 agent with 1 slot connected within 4 s, but the job needs 2 agents with 2 slots"
        )
        assert expected in job.output()
        assert job.events("job_ended")[0]["verdict"]["reason"] == "not_started"


def test_an_agent_without_the_key_is_refused(tmp_path, lab):
    with Dialed(tmp_path, lab, FIXED, "--agents", "1", "-np", "1") as job:
        wrong = tmp_path / "wrong"
        wrong.write_text("6" * 64)
        wrong.chmod(0o600)
        job.key, right = wrong, job.key
        refused = job.agent(lab.hosts[1], "--slots", "1", "--timeout", "3")
        assert refused.wait(20 * PATIENCE) == 1, job.output()
        job.key = right
        job.agent(lab.hosts[2], "--slots", "1")
        assert job.wait() == 0, job.output()
        assert events_of(tmp_path, 0)[0]["host"] == "node-c"


CALLER = """
import sys
import horovod

def work():
    import numpy as np
    import horovod.raw as hvd
    hvd.init()
    return hvd.rank(), float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])

if __name__ == "__main__":
    print(horovod.run(work, np=2, agents=1, listen=sys.argv[1], key_file=sys.argv[2]))
"""


def test_a_program_can_be_the_driver(tmp_path):
    """Needs no lab, because the agent is on this machine."""
    key = tmp_path / "key"
    key.write_text(KEY)
    key.chmod(0o600)
    (tmp_path / "caller.py").write_text(CALLER)
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{place.getsockname()[1]}"
    agent = subprocess.Popen(
        [ronde(), "agent", "--join", at, "--key-file", str(key), "--slots", "2"],
        stdin=subprocess.DEVNULL,
    )
    try:
        called = subprocess.run(
            [sys.executable, str(tmp_path / "caller.py"), at, str(key)],
            capture_output=True,
            text=True,
            timeout=50 * PATIENCE,
            check=False,
        )
        assert called.stdout.strip() == "[(0, 2.0), (1, 2.0)]", called
        assert agent.wait(20 * PATIENCE) == 0
    finally:
        agent.kill()
        agent.wait()
