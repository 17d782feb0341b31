"""`ronde cp` and `ronde hosts dns` over standing agents, in a lab without ssh between the hosts."""

import hashlib
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from jobs import until
from lab import Lab, horovodrun, ronde, why_not

REASON = why_not()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(60),
]

KEY = "7" * 64
PORT = 29508


@pytest.fixture
def lab(tmp_path):
    with Lab(tmp_path, 3, network="10.89.0", homes=True) as lab, standing(lab.hosts):
        yield lab


@contextmanager
def standing(hosts):
    """A standing agent on each of the hosts, and their key on all of them."""
    processes = []
    try:
        for host in hosts:
            key = host.home / ".config" / "ronde" / "agent.key"
            key.parent.mkdir(parents=True)
            key.write_text(KEY)
            key.chmod(0o600)
            agent = [ronde(), "agent", "--listen", f":{PORT}", "--slots", "3"]
            processes.append(
                subprocess.Popen(
                    [*host.prefix(), *agent],
                    env={**os.environ, "HOME": str(host.home)},
                    stdin=subprocess.DEVNULL,
                    stderr=(host.folder / "agent.log").open("w"),
                )
            )
        for host in hosts:
            log = host.folder / "agent.log"
            until(lambda log=log: "waits for launchers" in log.read_text(), 20, log.read_text)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def cp(lab, *arguments):
    return lab.run(ronde(), "cp", "--reach", "agent", *arguments)


def contents(folder):
    """Names, kinds, modes and contents of everything below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = ("folder", path.stat().st_mode & 0o777)
        else:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[name] = ("file", path.stat().st_mode & 0o777, path.stat().st_mtime_ns, digest)
    return found


def dataset(folder, small=500, megabytes=24):
    """A folder with many small files, a large one, links and unusual names and modes."""
    data = folder / "data"
    (data / "small" / "deep").mkdir(parents=True)
    for number in range(small):
        (data / "small" / f"{number}.txt").write_text(f"{number}\n" * (number % 7))
    with (data / "large.bin").open("wb") as file:
        for _ in range(megabytes):
            file.write(os.urandom(1 << 20))
    (data / "early").write_text("early")
    (data / "run.sh").write_text("#!/bin/sh\n")
    (data / "run.sh").chmod(0o755)
    (data / "secret").write_text("x")
    (data / "secret").chmod(0o600)
    (data / "small" / "deep" / "up").symlink_to("../0.txt")
    (data / "folder link").symlink_to("small")
    (Path(os.fsencode(data).decode("utf-8", "surrogateescape")) / "\udcff name\n").write_text("odd")
    os.utime(data / "secret", ns=(1, 1_234_567_890_123_456_789))
    return data


def test_a_folder_is_copied_to_all_hosts_and_only_once(tmp_path, lab):
    data = dataset(tmp_path)
    result = cp(lab, data, f"node-b,node-c:{lab.hosts[1].home}/x")
    assert result.returncode == 0, result.stdout + result.stderr
    # One of them may find files that the other has just written.
    found = re.findall(
        r"^node-[bc]: copied (\d+) files, \S+ MiB(?:, (\d+) file)?", result.stdout, re.M
    )
    assert [int(sent) + int(kept or 0) for sent, kept in found] == [505, 505], result.stdout
    # The hosts share a file system, so this is the same folder for both.
    assert contents(lab.hosts[1].home / "x" / "data") == contents(data)

    result = cp(lab, data, "node-b:")
    assert result.returncode == 0, result.stdout + result.stderr
    assert contents(lab.hosts[1].home / "data") == contents(data)
    (data / "small" / "1.txt").write_text("changed")
    (data / "new").write_text("new")
    again = cp(lab, data, data / "run.sh", "node-b:")
    assert "node-b: copied 3 files, 20 bytes, 504 files there already" in again.stdout, again.stdout
    there = contents(lab.hosts[1].home)
    assert {name: there[f"data/{name}"] for name in contents(data)} == contents(data)
    assert there["run.sh"][1] == 0o755


def arrived(folder):
    """Bytes of the large file that have arrived."""
    parts = folder.glob(".large.bin.ronde-part-node-b-*") if folder.exists() else []
    return sum(part.stat().st_size for part in parts)


def test_a_copy_that_was_killed_continues(tmp_path, lab):
    data = dataset(tmp_path, small=20, megabytes=150)
    target = lab.hosts[1].home / "data"
    copying = lab.start(ronde(), "cp", "--reach", "agent", data, "node-b:")
    until(lambda: arrived(target) > 5 << 20, 30, lambda: "nothing arrived")
    os.killpg(copying.pid, signal.SIGKILL)
    copying.wait()
    assert not (target / "large.bin").exists()
    result = cp(lab, data, "node-b:")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "copied 24 files, 150.0 MiB, 1 file there already" in result.stdout, result.stdout
    # The interrupted copy has removed what it had written, if not at once.
    until(lambda: arrived(target) == 0, 20, lambda: str(list(target.iterdir())))
    assert contents(target) == contents(data)


def test_links_neither_leave_the_folder_nor_lead_out_of_it(tmp_path, lab):
    home = lab.hosts[1].home
    data = tmp_path / "data"
    (data / "sub").mkdir(parents=True)
    (data / "absolute").symlink_to("/etc/passwd")
    (data / "sub" / "up").symlink_to("../../elsewhere")
    result = cp(lab, data, tmp_path / "missing", "node-b:")
    assert result.returncode == 2
    assert result.stderr.splitlines()[:3] == [
        "error: `data/absolute` is a link to `/etc/passwd`, outside the folder that is copied",
        "error: `data/sub/up` is a link to `../../elsewhere`, outside the folder that is copied",
        f"error: `{tmp_path}/missing`: No such file or directory (os error 2)",
    ]
    assert not (home / "data").exists()
    # A link that is there already is not followed either, whoever put it there.
    for path in (data / "absolute", data / "sub" / "up"):
        path.unlink()
    (data / "sub" / "file").write_text("new")
    outside = tmp_path / "outside"
    outside.mkdir()
    (home / "data").mkdir()
    (home / "data" / "sub").symlink_to(outside)
    result = cp(lab, data, "node-b,node-c:")
    assert result.returncode == 1
    assert "error: `node-b`: `data/sub`: there is something else of that name" in result.stdout
    assert "node-c: copied 1 file, 3 bytes" in result.stdout
    assert list(outside.iterdir()) == []


def test_each_host_has_its_own_error(tmp_path, lab):
    data = tmp_path / "data"
    data.write_text("x" * (3 << 20))
    full, lost = lab.hosts[1], lab.hosts[2]
    small = full.home / "small"
    small.mkdir()
    # In the namespace of the agent, which sees what is mounted there.
    full.enter("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small)
    hostfile = tmp_path / "hosts"
    hostfile.write_text(f"node-a\nnode-b\n{lost.address}\n")
    (lost.home / ".config/ronde/agent.key").write_text("8" * 64)
    lost.signal(signal.SIGKILL)
    result = cp(lab, "--hostfile", hostfile, "--start-timeout", "3", data, f"hosts:{small}")
    assert result.returncode == 1
    assert "node-a: copied 1 file, 3.0 MiB" in result.stdout, result.stdout
    assert "error: `node-b`: `data`: No space left on device" in result.stdout
    assert f"error: `{lost.address}`: no standing agent answers at {lost.address}:29508" in (
        result.stdout
    )


def test_usage_errors_say_where_hosts_go(lab, tmp_path):
    (tmp_path / "a").write_text("")
    for target, expected in [
        ("b", "error: `b` names no hosts"),
        ("hosts:", "error: `hosts:` stands for a list of hosts, and there is none"),
        ("a b:", "error: Invalid host input"),
    ]:
        result = cp(lab, tmp_path / "a", target)
        assert result.returncode == 2
        assert expected in result.stderr, result.stderr
        assert "hint: " in result.stderr


def test_dns_lists_the_hosts_whose_agents_answer(lab):
    first, second, third = lab.hosts
    # As the name service of a cluster would: a service has the addresses of its hosts, and a host
    # that has a name of its own keeps it.
    with (first.folder / "hosts").open("a") as file:
        for address in [second.address, third.address, f"{lab.network}.77"]:
            file.write(f"{address} workers\n")
        file.write(f"{second.address} node-b.workers\n")
    # An address that nobody has answers at once.
    first.enter("ip", "route", "add", "unreachable", f"{lab.network}.77")
    result = lab.run(ronde(), "hosts", "dns", "workers")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["node-b.workers:3", f"{third.address}:3"]
    result = lab.run(ronde(), "hosts", "dns", "workers", "--slots", "2", "--verbose")
    assert result.stdout.splitlines() == ["node-b.workers:2", f"{third.address}:2"]
    assert f"note: no standing agent answers at {lab.network}.77:29508" in result.stderr
    # The list is one for `horovodrun`.
    script = first.folder / "discover.sh"
    script.write_text(f"#!/bin/sh\nexec {ronde()} hosts dns workers --slots 1\n")
    script.chmod(0o755)
    options = ["-np", "2", "--reach", "agent", "--host-discovery-script", script]
    job = lab.run(
        horovodrun(), *options, sys.executable, "-c", "import socket; print(socket.gethostname())"
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert {"[0]<stdout>:node-b", "[1]<stdout>:node-c"} == set(job.stdout.splitlines())


def test_dns_says_why_it_lists_nothing(lab):
    first, second, _ = lab.hosts
    result = lab.run(ronde(), "hosts", "dns", "no-such-name.invalid")
    assert result.returncode == 1
    assert result.stderr.startswith("error: cannot resolve `no-such-name.invalid`: ")
    result = lab.run(ronde(), "hosts", "dns", second.name, "--port", "4", "--verbose")
    assert (result.returncode, result.stdout) == (0, "")
    assert "note: no standing agent answers at" in result.stderr
    (first.home / ".config/ronde/agent.key").unlink()
    result = lab.run(ronde(), "hosts", "dns", second.name)
    assert result.returncode == 2
    assert "standing agents need the key of the standing agents" in result.stderr, result.stderr
