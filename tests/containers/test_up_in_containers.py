"""`ronde up --docker`: prepares a machine over ssh, where agents then run in a container."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from machines import LIMIT_SECONDS, SLIM, WHERE, listens, shell, succeeds

HOME = "/home/me"
# The machine's own sshd, outside of containers. The real home directory of root is left alone.
SSHD = """
mkdir -p /run/sshd {home}
ssh-keygen -q -t ed25519 -N '' -f /run/host_key
exec /usr/sbin/sshd -p 2222 -h /run/host_key -o PidFile=/run/sshd.pid -o StrictModes=no \
  -o AuthorizedKeysFile=/opt/horovod/ssh/authorized_keys -o UsePAM=no \
  -o 'SetEnv=HOME={home} PATH=/usr/local/bin:/usr/bin:/bin DOCKER_HOST={docker}'
"""


@pytest.fixture
def site(node7, node8):
    """Runs commands on `node7`, from which `node8` can be reached by ssh."""
    script = SSHD.format(home=HOME, docker=node8.options[1])
    node8.enter("sh", "-c", script, stdin=subprocess.DEVNULL, timeout=LIMIT_SECONDS)
    listens(node8, 2222)
    commands = Path(sys.executable).parent

    def run(command, *words):
        place = ("env", f"HOME={HOME}", commands / command, *words)
        try:
            return node7.enter(*place, timeout=LIMIT_SECONDS, stdin=subprocess.DEVNULL)
        except subprocess.CalledProcessError as error:
            pytest.fail(f"{error}\n{error.stdout}{error.stderr}")

    yield run
    with suppress(subprocess.CalledProcessError):
        node8.enter("sh", "-c", "kill $(cat /run/sshd.pid); rm -f /run/host_key*")


def test_agents_run_in_containers_and_are_removed_again(site, node8):
    (node8.path("/data") / "said").write_text("hello")
    before = sorted(node8.path(HOME).rglob("*"))
    login = ("-p", "2222", "-i", "/opt/horovod/ssh/id_rsa")
    up = ("up", "-H", "node8:2", *login, "--docker", SLIM, "-v", "/data:/data")
    output = site("ronde", *up)
    job = "horovodrun -np 2 -H node8:2 --reach agent python train.py"
    assert "started the agent" in output and job in output, output
    program = f"assert open('/data/said').read() == 'hello'\n{WHERE}"
    assert site("horovodrun", *job.split()[1:-1], "-c", program).count("of 2 on node8") == 2
    assert succeeds(shell(node8, "docker ps --format '{{.Names}} {{.Image}}'")) == (
        f"ronde-agent {SLIM}\n"
    )
    assert "nothing to do" in site("ronde", *up)
    site("ronde", "down", *login)
    assert succeeds(shell(node8, "docker ps -aq")) == ""
    assert sorted(node8.path(HOME).rglob("*")) == before
