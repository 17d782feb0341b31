"""Jobs on standing agents (`ronde agent --listen`), and through a command that replaces ssh.

The hosts of the lab run sshds too, but a host whose agent is used never sees a login.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from elastic_jobs import PROGRAM
from jobs import until
from lab import Lab, horovodrun, inside, why_not
from test_agents import FIXED, ronde
from workers import events_of

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

PATIENCE = float(os.environ.get("RONDE_TEST_PATIENCE", "1"))
KEY = "6" * 64


class Site:
    """A key, and standing agents on the hosts of a lab."""

    def __init__(self, folder, lab):
        self.folder, self.lab = folder, lab
        self.key = folder / "agent.key"
        self.key.write_text(KEY)
        self.key.chmod(0o600)
        self.agents = []
        self.log = folder / "events.jsonl"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for agent in self.agents:
            with suppress(ProcessLookupError):
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()

    def stand(self, host, slots):
        """Starts a standing agent on a host, as its service manager would."""
        command = [ronde(), "agent", "--listen", ":29508", "--slots", str(slots)]
        log = self.folder / f"agent-{host.name}.txt"
        with log.open("a") as output:
            agent = subprocess.Popen(
                [*host.prefix(), *command, "--key-file", str(self.key)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.agents.append(agent)
        return agent

    def start(self, program, *options, **env):
        """Starts a launcher on the first host."""
        (self.folder / "program.py").write_text(program)
        command = [horovodrun(), *options, "--event-log", str(self.log)]
        facts = {"SAY_FOLDER": str(self.folder), "RONDE_FLIGHT_RECORDER_DIR": "off"}
        facts["RONDE_AGENT_KEY_FILE"] = str(self.key)
        with (self.folder / "output.txt").open("w") as output:
            launcher = self.lab.start(
                *command,
                sys.executable,
                str(self.folder / "program.py"),
                env={**facts, **env},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.agents.append(launcher)
        return launcher

    def output(self):
        texts = sorted(self.folder.glob("*.txt"))
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')}" for path in texts)

    def until(self, condition):
        return until(condition, 40 * PATIENCE, self.output)

    def worlds(self):
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("}")]
        formed = [event for event in events if event["event"] == "world_formed"]
        return [sorted(one["host"] for one in event["members"]) for event in formed]

    def logins(self, host):
        return "Accepted publickey" in (host.folder / "sshd.log").read_text()

    def met(self, ranks):
        events = [events_of(self.folder, rank)[0] for rank in range(ranks)]
        assert {one["total"] for one in events} == {float(ranks)}, self.output()
        return sorted(one["host"] for one in events)


@pytest.fixture(name="site")
def _site(tmp_path):
    with Lab(tmp_path, 3, network="10.78.10") as lab, Site(tmp_path, lab) as site:
        yield site


def test_a_job_needs_no_ssh_where_agents_stand_and_uses_it_elsewhere(site):
    """The agent of the second host comes late; the third host has none."""
    hosts = "node-a:1,node-b:2,node-c:1"
    site.stand(site.lab.hosts[1], 4)
    site.until(lambda: "waits for launchers" in site.output())
    launcher = site.start(FIXED, "-np", "4", "-H", hosts, "-p", "2222")
    assert launcher.wait(50 * PATIENCE) == 0, site.output()
    assert site.met(4) == ["node-a", "node-b", "node-b", "node-c"]
    assert [site.logins(host) for host in site.lab.hosts] == [False, False, True]


def test_late_agents_are_waited_for_and_a_missing_one_is_named(site):
    launcher = site.start(FIXED, "-np", "2", "-H", "node-b,node-c", "--reach", "agent")
    late = "waiting for host `{}`: no standing agent answers at {}:29508"
    for host in site.lab.hosts[1:]:
        site.until(lambda name=host.name: late.format(name, name) in site.output())
    for host in site.lab.hosts[1:]:
        site.stand(host, 1)
    assert launcher.wait(50 * PATIENCE) == 0, site.output()
    assert site.met(2) == ["node-b", "node-c"]
    os.killpg(site.agents[-1].pid, signal.SIGTERM)
    assert site.agents[-1].wait(20 * PATIENCE) == 0
    options = ("-np", "2", "-H", "node-b,node-c", "--reach", "agent", "--start-timeout", "3")
    assert site.start(FIXED, *options).wait(50 * PATIENCE) == 1
    assert "no standing agent answers at node-c:29508" in site.output()
    assert not any(site.logins(host) for host in site.lab.hosts)


def test_ranks_of_a_standing_agent_that_is_stopped_leave_at_a_commit(site):
    agents = [site.stand(host, 1) for host in site.lab.hosts[1:]]
    (site.folder / "hosts").write_text("node-a:1\nnode-b:1\nnode-c:1\n")
    script = ("--host-discovery-script", f"cat {site.folder}/hosts", "--reach", "agent")
    launcher = site.start(PROGRAM, "-np", "3", "--min-np", "1", *script)
    site.until(lambda: site.worlds()[-1:] == [["node-a", "node-b", "node-c"]])
    # As when a node is drained: the pod gets SIGTERM and is no longer listed.
    (site.folder / "hosts").write_text("node-a:1\nnode-b:1\n")
    os.killpg(agents[1].pid, signal.SIGTERM)
    assert agents[1].wait(40 * PATIENCE) == 0, site.output()
    site.until(lambda: site.worlds()[-1:] == [["node-a", "node-b"]])
    # No step was lost: nobody started over from an earlier one.
    steps = [event["step"] for event in events_of(site.folder, 0) if event["event"] == "world"]
    assert steps == sorted(steps), steps
    assert "lost" not in (site.folder / "output.txt").read_text(), site.output()
    # It returns, as a pod of the same name would.
    site.stand(site.lab.hosts[2], 1)
    (site.folder / "hosts").write_text("node-a:1\nnode-b:1\nnode-c:1\n")
    site.until(lambda: site.worlds()[-1:] == [["node-a", "node-b", "node-c"]])
    (site.folder / "over").touch()
    assert launcher.wait(40 * PATIENCE) == 0, site.output()
    for host in site.lab.hosts[:1]:
        site.until(lambda host=host: inside(host.sshd.pid) == [host.sshd.pid])


def test_any_command_that_gives_a_pipe_replaces_ssh(site):
    """Here `nsenter`, as `docker exec -i` or `kubectl exec -i` would."""
    enter = site.folder / "enter"
    cases = "\n".join(f"{host.name}) pid={host.sshd.pid};;" for host in site.lab.hosts)
    enter.write_text(
        f"#!/bin/sh\nhost=$1; shift\ncase $host in\n{cases}\n"
        '*) echo "no $host" >&2; exit 9;; esac\n'
        'exec nsenter -t $pid --net --uts --mount -- "$@"\n'
    )
    enter.chmod(0o755)
    rsh = ("--rsh", f"{enter} {{host}} {{command}}")
    launcher = site.start(FIXED, "-np", "3", "-H", "node-a,node-b,node-c", *rsh)
    assert launcher.wait(50 * PATIENCE) == 0, site.output()
    assert site.met(3) == ["node-a", "node-b", "node-c"]
    assert not any(site.logins(host) for host in site.lab.hosts)
    launcher = site.start(FIXED, "-np", "2", "-H", "node-a,node-x", *rsh)
    assert launcher.wait(50 * PATIENCE) == 1
    text = (site.folder / "output.txt").read_text()
    assert "could not start an agent there: it exited with code 9: no node-x" in text, text
