"""Containers with less: limits, a read-only system, no capabilities, no network, no user."""

import pytest
from machines import SLIM, WHERE, listens, python, shell, succeeds

LESS = (
    "--read-only",
    "--read-only --user 12345:12345 --cap-drop ALL --security-opt no-new-privileges",
    "--cap-drop ALL",
    "--user 12345:12345",
    "--network none",
    "--ipc none",
    "--ipc private --shm-size 64m",
    "--cpus 0.5",
    "--pids-limit 100",
    "--security-opt seccomp=unconfined",
    "--pid host",
    "--init",
    "--ulimit nofile=256",
)
# More than /dev/shm holds by default.
LARGE = """
import numpy, horovod.raw as hvd
hvd.init()
total = hvd.allreduce(numpy.ones(1 << 25, "float32"), op=hvd.Sum)
assert (total == hvd.size()).all()
print("reduced", total.nbytes, flush=True)
"""
GREEDY = """
import horovod.raw as hvd
hvd.init()
memory = []
while True:
    memory.append(b"x" * (1 << 24))
"""


@pytest.mark.parametrize("options", LESS)
def test_a_job_runs_with(node7, options):
    line = f"docker run --rm {options} {SLIM} horovodrun -np 2 {python(WHERE)}"
    assert succeeds(shell(node7, line)).count(" of 2 on ") == 2


def test_tensors_may_be_larger_than_shared_memory(node7):
    line = f"docker run --rm --shm-size 64m {SLIM} horovodrun -np 2 {python(LARGE)}"
    assert succeeds(shell(node7, line)).count("reduced 134217728") == 2


def test_a_job_that_needs_too_much_memory_says_so(node7):
    line = f"docker run --rm -m 150m --memory-swap 150m {SLIM} horovodrun -np 2 {python(GREEDY)}"
    done = shell(node7, line)
    assert done.returncode == 137
    assert "memory" in done.stderr and "SIGKILL" in done.stderr, done.stderr


@pytest.mark.parametrize(
    "options", ["", "--read-only --tmpfs /tmp", "--user ronde", "--cap-drop ALL --user ronde"]
)
def test_sshd_makes_a_host_key_where_it_can(node7, options):
    home = "/home/ronde" if "ronde" in options else "/root"
    # Keys of the user who mounts them; no host key is in the image.
    keys = f"-v /mnt/share/ssh:{home}/.ssh:ro"
    line = f"docker run -d --name one {options} {keys} {SLIM} /usr/sbin/sshd -p 12345 -D"
    succeeds(shell(node7, line))
    listens(node7, 12345, "one")
    login = "ssh -p 12345 localhost 'command -v horovodrun'"
    assert succeeds(shell(node7, f"docker exec one {login}")) == "/usr/local/bin/horovodrun\n"


def test_a_user_that_an_image_of_ones_own_adds_can_log_in(node7):
    script = (
        "useradd -m me; cp -r /root/.ssh /home/me; chown -R me: /home/me/.ssh; "
        "exec /usr/sbin/sshd -p 12345 -D"
    )
    keys = "-v /opt/horovod/ssh:/root/.ssh:ro"
    succeeds(shell(node7, f"docker run -d --name one {keys} {SLIM} sh -c '{script}'"))
    listens(node7, 12345, "one")
    assert succeeds(shell(node7, "docker exec one ssh -p 12345 me@localhost id -un")) == "me\n"


def test_two_containers_have_different_host_keys(node7):
    for name in ("one", "two"):
        node7.must("run", "-d", "--name", name, SLIM, "/usr/sbin/sshd", "-p", "12345", "-D")
        listens(node7, 12345, name)
    keys = {
        node7.must("exec", name, "cat", "/etc/ssh/ssh_host_ed25519_key.pub")
        for name in ("one", "two")
    }
    assert len({key.split()[1] for key in keys}) == 2
