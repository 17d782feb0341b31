"""Jobs on several containers: over ssh, over `docker exec`, and what happens to one of them."""

import pytest
from machines import FOREVER, SLIM, WHERE, Running, listens, python, shell, succeeds, until

KEYS = "-v /opt/horovod/ssh:/root/.ssh:ro"
SSHD = "/usr/sbin/sshd -p 12345 -D"
ON_BOTH = "horovodrun -np 4 -H one:2,two:2 -p 12345"


@pytest.fixture
def pair(node7):
    """Two containers on a network of their own, with sshd; returns the machine."""
    succeeds(shell(node7, "docker network create jobs"))
    for name in ("one", "two"):
        line = f"docker run -d --name {name} --hostname {name} --network jobs {KEYS} {SLIM} {SSHD}"
        succeeds(shell(node7, line))
    for name in ("one", "two"):
        listens(node7, 12345, name)
    return node7


def test_a_job_over_ssh(pair):
    output = succeeds(shell(pair, f"docker exec one {ON_BOTH} {python(WHERE)}"))
    assert output.count("on one") == 2 and output.count("on two") == 2, output


def test_hosts_with_the_same_name_are_told_apart(node7):
    succeeds(shell(node7, "docker network create jobs"))
    for name in ("one", "two"):
        line = f"docker run -d --name {name} --hostname same --network jobs {KEYS} {SLIM} {SSHD}"
        succeeds(shell(node7, line))
        listens(node7, 12345, name)
    output = succeeds(shell(node7, f"docker exec one {ON_BOTH} {python(WHERE)}"))
    assert output.count(" of 4 on same") == 4


def test_a_killed_worker_ends_the_job_and_is_named(pair):
    with Running(pair, f"docker exec one {ON_BOTH} {python(FOREVER)}") as job:
        job.says("trains", 4)
        pair.must("kill", "two")
        assert job.ends() == 1
        assert "lost host `two`" in job.output, job.output


def test_nothing_is_left_when_the_container_of_the_launcher_is_killed(pair):
    with Running(pair, f"docker exec one {ON_BOTH} {python(FOREVER)}") as job:
        job.says("trains", 4)
        assert "python" in pair.must("top", "two", "-o", "pid,comm")
        pair.must("kill", "one")
        until(lambda: "python" not in pair.must("top", "two", "-o", "pid,comm"))


def test_a_paused_worker_is_noticed(pair):
    with Running(pair, f"docker exec one {ON_BOTH} {python(FOREVER)}") as job:
        job.says("trains", 4)
        pair.must("pause", "two")
        job.says("host `two` has not answered|lost host `two`")
        pair.must("unpause", "two")


def test_ssh_without_an_entry_for_the_user_says_why(pair):
    job = "horovodrun -np 1 -H two:1 -p 12345 true"
    done = shell(pair, f"docker run --rm --user 12345 --network jobs {SLIM} {job}")
    assert done.returncode == 1
    assert "No user exists for uid 12345" in done.stderr, done.stderr
