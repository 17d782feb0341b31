"""`ronde up` and `ronde down` in a lab of hosts with home directories of their own."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

import pytest
from jobs import until
from lab import Lab, inside, ronde, why_not

from horovod import _wheels

REASON = why_not()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(60),
]

PORT = 29508

TRAIN = """
import socket, sys
import numpy as np
import horovod.raw as hvd

hvd.init()
weight = np.zeros(1)
for step in range(20):
    gradient = hvd.allreduce(2 * (weight - hvd.rank()), op=hvd.Average)
    weight -= 0.25 * gradient
print(f"{socket.gethostname()} {hvd.rank()}/{hvd.size()} {weight[0]:.3f} {sys.prefix}")
"""


@pytest.fixture
def lab(tmp_path):
    with Lab(tmp_path, 4, network="10.86.0", homes=True) as lab:
        yield lab


@pytest.fixture
def pair(tmp_path):
    with Lab(tmp_path, 2, network="10.87.0", homes=True) as lab:
        yield lab


def up(lab, *options):
    return lab.run(ronde(), "up", *options)


def first_up(lab, *options):
    hosts = ",".join(host.name for host in lab.hosts)
    return up(lab, "-H", hosts, "-p", lab.hosts[0].port, *options)


def requirements(folder):
    """A list of requirements that can be installed without a package index."""
    wheels = folder / "wheels"
    wheels.mkdir()
    _wheels.pack(distribution("numpy"), wheels)
    path = folder / "requirements.txt"
    path.write_text(f"--no-index\n--find-links {wheels}\nnumpy\n")
    return path


def snapshot(home):
    """Every file and folder below a home directory, with its content, except caches."""
    found = {}
    for path in sorted(home.rglob("*")):
        if ".cache" in path.relative_to(home).parts:
            continue
        is_file = path.is_file() and not path.is_symlink()
        found[str(path.relative_to(home))] = path.read_bytes() if is_file else None
    return found


def agents(host):
    """The PIDs of the standing agents on a host."""
    found = []
    for pid in inside(host.sshd.pid):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"agent" in line and b"--listen" in line:
            found.append(pid)
    return found


def test_four_bare_hosts_run_a_training_job_and_are_bare_again(tmp_path, lab):
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    mine = lab.hosts[1].home / ".config" / "other" / "file"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    before = [snapshot(host.home) for host in lab.hosts]

    result = first_up(lab, "--env", requirements(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    for host in lab.hosts:
        # The launcher's host has the PATH of this test, where there may be a `uv`.
        uv = "(sent uv, )?" if host is lab.hosts[0] else "sent uv, "
        done = rf"{host.name}: sent the agents' key, {uv}installed the environment, started"
        assert re.search(done, result.stdout), result.stdout
        key = host.home / ".config" / "ronde" / "agent.key"
        assert key.stat().st_mode & 0o777 == 0o600
    keys = {(host.home / ".config/ronde/agent.key").read_text() for host in lab.hosts}
    assert len(keys) == 1
    assert not [pid for pid in os.listdir("/proc") if shows(pid, keys.copy().pop().strip())]

    # Exactly the command that it says, as a shell would run it.
    (command,) = re.findall(r"start a job with:\n  (.*) train.py$", result.stdout, re.MULTILINE)
    assert command.endswith("-H node-a:1,node-b:1,node-c:1,node-d:1 --reach agent python")
    job = lab.run("sh", "-c", f"PATH={Path(ronde()).parent}:$PATH; {command} {program}")
    assert job.returncode == 0, job.stdout + job.stderr
    for rank, host in enumerate(lab.hosts):
        environment = host.home / ".local" / "share" / "ronde" / "env"
        assert f"{host.name} {rank}/4 1.500 {environment}" in job.stdout, job.stdout

    state = [snapshot(host.home) for host in lab.hosts]
    pids = [agents(host) for host in lab.hosts]
    again = up(lab, "--env", tmp_path / "requirements.txt")
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.startswith("".join(f"{host.name}: nothing to do\n" for host in lab.hosts))
    assert [agents(host) for host in lab.hosts] == pids

    shown = up(lab, "--status")
    assert shown.returncode == 0
    assert shown.stdout.count("runs as a process") == 4
    assert [list(snapshot(host.home)) for host in lab.hosts] == [list(each) for each in state]

    down = lab.run(ronde(), "down")
    assert down.returncode == 0, down.stdout + down.stderr
    assert [snapshot(host.home) for host in lab.hosts] == before
    assert not any(agents(host) for host in lab.hosts)


def shows(pid, text):
    try:
        return text.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_only_what_differs_is_changed(pair, tmp_path):
    first, second = pair.hosts
    assert first_up(pair, "--env", requirements(tmp_path)).returncode == 0
    (old,) = agents(second)
    os.kill(old, signal.SIGKILL)
    until(lambda: not agents(second), 10, lambda: "the agent lives on")
    assert "node-b  has stopped" in up(pair, "--status").stdout
    result = up(pair)
    assert result.stdout.startswith("node-a: nothing to do\nnode-b: started the agent\n")
    # Another port: both agents are replaced, and nothing is installed.
    (kept,) = agents(first)
    moved = up(pair, "--port", "29600")
    assert moved.returncode == 0, moved.stdout + moved.stderr
    changed = "stopped the old agent, started the agent\n"
    assert moved.stdout.startswith(f"node-a: {changed}node-b: {changed}")
    assert "--reach agent --agent-port 29600 python train.py" in moved.stdout
    assert len(agents(first)) == 1 and agents(first) != [kept]
    # One host leaves; the key stays as long as the other one needs it.
    down = pair.run(ronde(), "down", "-H", "node-b", "-p", second.port)
    assert down.returncode == 0, down.stdout + down.stderr
    assert snapshot(second.home) == {} and len(agents(first)) == 1
    assert pair.run(ronde(), "down").returncode == 0
    assert snapshot(first.home) == {}


@contextmanager
def listening(host, port):
    program = (
        "import socket, time; s = socket.create_server(('', int(__import__('sys').argv[1])));"
        "print('ready', flush=True); time.sleep(100)"
    )
    command = [*host.prefix(), sys.executable, "-c", program, str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        process.kill()
        process.wait()


@contextmanager
def refusing_keys(host):
    path = host.folder / "authorized_keys"
    text = path.read_text()
    path.write_text("")
    yield
    path.write_text(text)


@contextmanager
def without_python(host):
    python = host.bin / "python3"
    target = python.readlink()
    python.unlink()
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    yield
    python.unlink()
    python.symlink_to(target)


@contextmanager
def full_disk(host):
    host.enter("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", host.home)
    yield
    host.enter("umount", host.home)


@contextmanager
def other_key(host):
    path = host.home / ".config" / "ronde" / "agent.key"
    path.parent.mkdir(parents=True)
    path.write_text("5" * 64)
    path.chmod(0o600)
    yield
    assert path.read_text() == "5" * 64
    path.unlink()
    path.parent.rmdir()
    path.parent.parent.rmdir()


BROKEN = [
    (
        lambda host: host.without_sshd(),
        """\
error: `node-b`: no ssh server is listening on port 2222
  fix: start `sshd` there, or pass its port with `-p`; try `ssh -p 2222 node-b`
""",
    ),
    (
        refusing_keys,
        """\
error: `node-b`: ssh login failed: USER@node-b: Permission denied (publickey).
  fix: install your key with `ssh-copy-id -p 2222 node-b`, or pass another key with `-i`
""",
    ),
    (
        without_python,
        """\
error: `node-b`: there is no `python3` in the PATH of its ssh sessions
  fix: install Python 3.9 or newer there, or use `--docker IMAGE`
""",
    ),
    (
        full_disk,
        """\
error: `node-b`: only 2 MiB are free in `HOME`, and the installation needs N MiB
  fix: free some space there
""",
    ),
    (
        lambda host: listening(host, PORT),
        """\
error: `node-b`: port 29508 is in use by OWNER
  fix: stop that process, or choose another port with `--port`
""",
    ),
    (
        other_key,
        """\
error: `node-b`: it has a different agents' key in `~/.config/ronde/agent.key`
  fix: it may belong to another cluster, so it is left alone: run `ronde down` from there, or move \
the file away if nothing uses it
""",
    ),
]


def test_a_broken_host_is_named_with_its_problem_and_nothing_is_changed(pair):
    host = pair.hosts[1]
    key = pair.hosts[0].home / ".ssh" / "id_ed25519"
    key.parent.mkdir()
    key.write_text("a key that is not accepted")
    verdict = "\n1 of 2 hosts cannot be used yet; nothing was changed\n"
    # The last one leaves the host without sshd.
    for breakage, expected in reversed(BROKEN):
        with breakage(host):
            before = [snapshot(each.home) for each in pair.hosts]
            result = first_up(pair)
            assert [snapshot(each.home) for each in pair.hosts] == before
        assert result.returncode == 1, result.stdout + result.stderr
        text = result.stdout.replace(str(host.home), "HOME")
        text = re.sub(r"\S+@node-b", "USER@node-b", text)
        text = re.sub(r"needs \d+ MiB", "needs N MiB", text)
        text = re.sub(
            r"in use by (`python3?[.0-9]*` \(pid \d+\)|another process)", "in use by OWNER", text
        )
        assert text == expected + verdict


def test_all_problems_of_all_hosts_are_reported_at_once(pair):
    first, second = pair.hosts
    with refusing_keys(second), listening(first, PORT), other_key(second):
        result = first_up(pair)
    assert result.returncode == 1
    assert "error: `node-a`: port 29508 is in use by" in result.stdout
    assert "error: `node-b`: ssh login failed" in result.stdout
    assert "2 of 2 hosts cannot be used yet; nothing was changed" in result.stdout
    with without_python(second), listening(second, PORT), other_key(second):
        result = first_up(pair)
    assert result.stdout.count("error: `node-b`") == 3, result.stdout


def test_a_key_for_ssh_is_made_only_if_there_is_none(pair):
    first, second = pair.hosts
    with refusing_keys(second):
        result = first_up(pair)
        assert "note: you had no key for ssh, so one was made" in result.stderr, result.stderr
        made = snapshot(first.home / ".ssh")
        assert list(made) == ["id_ed25519", "id_ed25519.pub"]
        assert "note:" not in first_up(pair).stderr
    assert snapshot(first.home / ".ssh") == made


def test_an_agent_that_does_not_start_is_explained_with_its_last_words(pair):
    second = pair.hosts[1]
    # The agent finds the port taken by a process that came after the check.
    assert first_up(pair).returncode == 0
    state = second.home / ".local" / "share" / "ronde" / "env" / "bin" / "ronde"
    state.unlink()
    state.write_text("#!/bin/sh\necho 'error: no luck today' >&2; exit 1\n")
    state.chmod(0o755)
    for pid in agents(second):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not agents(second), 10, lambda: "the agent lives on")
    result = up(pair)
    assert result.returncode == 1
    expected = (
        "error: `node-b`: could not start the agent: the agent does not start: error: no luck"
    )
    assert expected in result.stdout, result.stdout
    assert (
        "1 of 2 hosts cannot be used yet; run `ronde up` again once that is fixed" in result.stdout
    )
