"""Jobs on containers without ssh: standing agents, compose, and `docker exec`."""

import json
import os
import sys
from pathlib import Path

import pytest
from elastic_jobs import PROGRAM as ELASTIC
from engine import TOP, compose
from machines import FOREVER, LIMIT_SECONDS, SLIM, WHERE, Running, python, shell, succeeds, until

KEY = "/opt/horovod/agent.key"
SHARE = "-v /mnt/share:/mnt/share -e SAY_FOLDER=/mnt/share/said"
HOLDS_KEY = f"-v {KEY}:/run/secrets/agent-key:ro -e RONDE_AGENT_KEY_FILE=/run/secrets/agent-key"
AGENT = "ronde agent --listen :29508 --slots 2"


@pytest.fixture
def key(machines):
    """A private file with the same key on both machines."""
    for machine in (machines.node7, machines.node8):
        path = machine.path(KEY)
        path.write_text("6" * 64 + "\n")
        path.chmod(0o600)
        os.chown(path, 0, 0)


@pytest.fixture
def agents(key, node7):
    """Two containers on a network of their own whose own process is a standing agent."""
    succeeds(shell(node7, "docker network create jobs"))
    for name in ("one", "two"):
        stand(node7, name)
    return node7


def stand(machine, name):
    options = f"--name {name} --hostname {name} --network jobs {SHARE} {HOLDS_KEY}"
    succeeds(shell(machine, f"docker run -d {options} {SLIM} {AGENT}"))


def job(hosts, program, options=""):
    size = 2 * len(hosts.split(","))
    launcher = f"horovodrun -np {size} -H {hosts} --reach agent {options} {python(program)}"
    return f"docker run --rm --name driver --network jobs {HOLDS_KEY} {SLIM} {launcher}"


def test_a_job_over_standing_agents(agents):
    output = succeeds(shell(agents, job("one:2,two:2", WHERE)))
    assert output.count("on one") == 2 and output.count("on two") == 2, output


def test_a_second_job_follows_on_the_same_agents(agents):
    for _ in range(2):
        assert succeeds(shell(agents, job("one:2,two:2", WHERE))).count(" of 4 on ") == 4


def test_between_machines_on_their_own_network(key, node7, node8):
    options = f"--network=host {HOLDS_KEY}"
    succeeds(shell(node8, f"docker run -d --name hworker {options} {SLIM} {AGENT}"))
    launcher = f"horovodrun -np 4 -H node7:2,node8:2 --reach agent {python(WHERE)}"
    output = succeeds(shell(node7, f"docker run --rm {options} {SLIM} {launcher}"))
    assert output.count("on node7") == 2 and output.count("on node8") == 2, output


def test_addresses_in_the_environment_replace_a_list_of_hosts(agents):
    launcher = f"-e HOROVOD_HOSTNAME=one:29508,two:29508 {SLIM} horovodrun -np 4 {python(WHERE)}"
    output = succeeds(shell(agents, f"docker run --rm --network jobs {HOLDS_KEY} {launcher}"))
    assert output.count("on one") == 2 and output.count("on two") == 2, output


def test_the_order_of_start_does_not_matter(key, node7):
    succeeds(shell(node7, "docker network create jobs"))
    stand(node7, "one")
    with Running(node7, job("one:2,two:2", WHERE)) as early:
        until(lambda: node7.run("top", "driver", "-o", "pid,args").stdout.count("horovodrun") > 1)
        stand(node7, "two")
        assert early.ends() == 0, early.output
        assert early.output.count(" of 4 on ") == 4


def test_an_agent_needs_neither_root_nor_an_entry_nor_a_writable_system(key, node7):
    succeeds(shell(node7, "docker network create jobs"))
    node7.enter("chown", "12345", KEY)
    less = "--user 12345 --read-only --cap-drop ALL --security-opt no-new-privileges"
    options = f"--name one --hostname one --network jobs {less} {HOLDS_KEY}"
    succeeds(shell(node7, f"docker run -d {options} {SLIM} {AGENT}"))
    launcher = f"horovodrun -np 2 -H one:2 --reach agent {python(WHERE)}"
    line = f"docker run --rm --network jobs {less} {HOLDS_KEY} {SLIM} {launcher}"
    assert succeeds(shell(node7, line)).count(" of 2 on one") == 2


def test_a_launcher_with_another_key_is_refused(agents):
    agents.enter("sh", "-c", f"tr 6 7 <{KEY} >{KEY}.other; chmod 600 {KEY}.other")
    done = shell(
        agents, job("one:2,two:2", WHERE, "--start-timeout 5").replace(KEY, f"{KEY}.other")
    )
    assert done.returncode == 1
    assert "key" in done.stderr, done.stderr


def test_a_killed_agent_is_a_lost_host(agents):
    with Running(agents, job("one:2,two:2", FOREVER)) as running:
        running.says("trains", 4)
        agents.must("kill", "two")
        assert running.ends() == 1
        assert "lost host `two`" in running.output, running.output


def test_a_paused_agent_is_noticed(agents):
    with Running(agents, job("one:2,two:2", FOREVER)) as running:
        running.says("trains", 4)
        agents.must("pause", "two")
        running.says("host `two` has not answered|lost host `two`")
        agents.must("unpause", "two")


def test_nothing_is_left_when_the_launcher_is_killed(agents):
    with Running(agents, job("one:2,two:2", FOREVER)) as running:
        running.says("trains", 4)
        agents.must("kill", "driver")
        for name in ("one", "two"):
            until(lambda name=name: "python" not in agents.must("top", name, "-o", "pid,comm"))
    # Docker may still be removing the container, and its name is taken until then.
    until(lambda: "driver" not in agents.must("ps", "-a", "--format", "{{.Names}}").split())
    assert succeeds(shell(agents, job("one:2,two:2", WHERE))).count(" of 4 on ") == 4


def test_an_idle_agent_stops_when_told_to(agents):
    agents.must("stop", "-t", LIMIT_SECONDS, "one")
    assert agents.must("inspect", "-f", "{{.State.ExitCode}}", "one") in ("0", "143")


def test_a_stopped_agent_leaves_an_elastic_job_in_order(agents, machines):
    said = machines.share / "said"
    said.mkdir()
    (said / "program.py").write_text(ELASTIC)
    launcher = "horovodrun -np 4 --min-np 2 -H one:2,two:2 --reach agent python program.py"
    options = f"--network jobs {SHARE} -w /mnt/share/said {HOLDS_KEY}"
    with Running(agents, f"docker run --rm {options} {SLIM} {launcher}") as running:
        until(lambda: worlds(said).count(4) == 4, lambda: running.output)
        agents.must("stop", "-t", LIMIT_SECONDS, "two")
        assert agents.must("inspect", "-f", "{{.State.ExitCode}}", "two") != "137"
        until(lambda: worlds(said).count(2) == 2, lambda: running.output)
        (said / "over").touch()
        assert running.ends() == 0, running.output
        assert "lost" not in running.output, running.output


def worlds(folder):
    """The sizes of the worlds that workers of an elastic job have joined."""
    events = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.open()]
    return [event["size"] for event in events if event["event"] == "world"]


def test_a_job_over_docker_exec(node7):
    for name in ("one", "two"):
        node7.must("run", "-d", "--name", name, "--hostname", name, SLIM, "sleep", "infinity")
    # The launcher is on the machine itself, outside of containers, with the same version of Ronde.
    launcher = Path(sys.executable).with_name("horovodrun")
    docker = f"docker -H {node7.options[1]} exec -i {{host}} {{command}}"
    command = [launcher, "-np", "4", "-H", "one:2,two:2", "--rsh", docker]
    output = node7.enter(*command, "python", "-c", WHERE, timeout=LIMIT_SECONDS)
    assert output.count("on one") == 2 and output.count("on two") == 2, output


def test_a_cluster_by_compose(key, node7):
    env = {"RONDE_IMAGE": SLIM, "RONDE_AGENT_KEY_PATH": KEY, "COMPOSE_PROJECT_NAME": "ronde"}
    place = {**os.environ, **env, "DOCKER_HOST": node7.options[1]}
    line = f"{compose()} -f {TOP}/deploy/docker/compose.yaml run --rm driver"
    launcher = f"horovodrun -np 4 -H worker-1:2,worker-2:2 {python(WHERE)}"
    output = succeeds(shell(node7, f"{line} {launcher}", env=place))
    assert output.count("on worker-1") == 2 and output.count("on worker-2") == 2, output
