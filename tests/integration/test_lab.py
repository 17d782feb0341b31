"""`horovodrun` across hosts with real sshds, and its errors when something goes wrong."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from importlib.util import find_spec
from pathlib import Path

import pytest
from lab import Lab, horovodrun, marked, why_not

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

PORT = 2222
# Plain arrays, because importing a framework takes longer than everything else.
WORK = """
import horovod.raw as hvd
import numpy

hvd.init()
rank, size = hvd.rank(), hvd.size()
numbers = numpy.arange(100_000.0)
total = hvd.allreduce(numbers * (rank + 1), op=hvd.Sum)
assert (total == numbers * (size * (size + 1) // 2)).all()
assert hvd.allgather(numpy.array([rank])).tolist() == list(range(size))
print("done", rank, hvd.local_rank(), hvd.cross_rank(), flush=True)
"""
# Ranks that train until they are killed, and print what they raise.
ENDLESS = """
import sys, time
import horovod.raw as hvd
import numpy

hvd.init()
print("training", flush=True)
try:
    while True:
        hvd.allreduce(numpy.ones(10), name="step")
        time.sleep(0.01)
except Exception as error:
    print("raised", time.time(), type(error).__name__, error, flush=True)
    raise
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with Lab(tmp_path_factory.mktemp("lab"), 3) as lab:
        yield lab


@pytest.fixture
def own_lab(tmp_path):
    """A separate lab, which a test may break."""
    with Lab(tmp_path, 3, network="10.79.0") as lab:
        yield lab


def hosts(count=3, slots=1):
    return ",".join(f"node-{letter}:{slots}" for letter in "abc"[:count])


def script(folder, text):
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    return path


def messages(result):
    """The launcher's own messages, without the output of ranks."""
    return re.sub(r"^\[\d+\]<std.*\n?", "", result.stderr, flags=re.M)


def test_ranks_on_three_hosts_train_together(lab, tmp_path):
    path = script(tmp_path, WORK)
    command = ("-np", "4", "-H", "node-a:2,node-b:1,node-c:1", "-p", PORT, sys.executable, path)
    result = lab.run(horovodrun(), *command)
    assert result.returncode == 0, result.stderr
    lines = sorted(result.stdout.splitlines())
    expected = ["0 0 0", "1 1 0", "2 0 1", "3 0 2"]
    assert lines == [f"[{rank}]<stdout>:done {line}" for rank, line in enumerate(expected)]


def test_hostname_shows_where_each_rank_is(lab):
    cases = {
        "node-a:1,10.78.0.2:1": ["node-a", "node-b"],
        "node-c:1,root@node-b:1": ["node-c", "node-b"],
        "node-b:2": ["node-b", "node-b"],
    }
    for names, expected in cases.items():
        result = lab.run(horovodrun(), "-np", "2", "-H", names, "-p", PORT, "hostname")
        assert result.returncode == 0, result.stderr
        lines = sorted(result.stdout.splitlines())
        assert lines == [f"[{rank}]<stdout>:{name}" for rank, name in enumerate(expected)]


def test_a_rank_on_another_host_may_have_a_terminal(lab):
    show = "import os; print(os.uname().nodename, os.isatty(1) and os.get_terminal_size().columns)"
    command = ("-np", "2", "-H", "node-b:1,node-c:1", "-p", PORT, sys.executable, "-c", show)
    result = lab.run(horovodrun(), "--tty", "0", *command)
    assert result.returncode == 0, result.stderr
    # Behind its prefix a line fits the usual 80 columns.
    lines = [f"[0]<stdout>:node-b {80 - len('[0]<stdout>:')}", "[1]<stdout>:node-c False"]
    assert sorted(result.stdout.splitlines()) == lines


def test_a_rank_on_another_host_has_the_launchers_environment_and_its_hosts(lab, tmp_path):
    show = "import json, os; print(json.dumps(dict(os.environ)), os.getcwd())"
    env = {"MINE": "a b\n'c'", "SSH_TTY": "/dev/of-the-launcher", "BASH_FUNC_f%%": "() { x; }"}
    command = (horovodrun(), "-np", "1", "-H", "node-b:1", "-p", PORT, sys.executable, "-c", show)
    result = lab.run(*command, env=env, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    text, cwd = result.stdout.removeprefix("[0]<stdout>:").rsplit(" ", 1)
    there = json.loads(text)
    assert cwd.strip() == str(tmp_path)
    assert there["MINE"] == env["MINE"]
    assert there["PATH"] == os.environ["PATH"]
    assert "SSH_TTY" not in there
    assert "BASH_FUNC_f%%" not in there
    assert there["SSH_CONNECTION"].split()[0] == "10.78.0.1"
    assert there["RONDE_ADDRESSES"] == "10.78.0.2"


def test_torch_distributed_scripts_connect_across_hosts(lab, tmp_path):
    path = script(
        tmp_path,
        """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.tensor([dist.get_rank() + 1.0])
        dist.all_reduce(total)
        print(total.item(), dist.get_world_size(), flush=True)
        dist.destroy_process_group()
        """,
    )
    result = lab.run(horovodrun(), "-np", "2", "-H", hosts(2), "-p", PORT, sys.executable, path)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[0]<stdout>:3.0 2", "[1]<stdout>:3.0 2"]


def test_ssh_errors_are_reported_with_a_hint(lab, tmp_path):
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True
    )
    known = lab.hosts[0].folder / "known_hosts"
    cases = [
        # A key that the host does not accept.
        (
            ["-p", PORT, "-i", tmp_path / "other", "-H", "node-a:1,node-b:1"],
            {"RONDE_TEST_NO_KEY": "1"},
            "`node-b`: ssh login failed: root@node-b: Permission denied (publickey).",
            f"install your key with `ssh-copy-id -p {PORT} -i {tmp_path / 'other'} node-b`, or "
            "pass another key with `-i`",
        ),
        (
            ["-p", "2223", "-H", "node-a:1,node-b:1"],
            {},
            "`node-b`: no ssh server is listening on port 2223",
            "start `sshd` there, or pass its port with `-p`; try `ssh -p 2223 node-b`",
        ),
        (
            ["-p", PORT, "-H", "node-a:1,node-x:1"],
            {},
            "`node-x`: cannot resolve the host name `node-x`",
            "check its spelling, `/etc/hosts` and DNS, or use its address",
        ),
    ]
    for options, env, reason, hint in cases:
        if env:
            (lab.hosts[0].folder / "id").rename(tmp_path / "id")
        try:
            result = lab.run(horovodrun(), "-np", "2", *options, "true")
        finally:
            if env:
                (tmp_path / "id").rename(lab.hosts[0].folder / "id")
        assert result.returncode == 1
        lines = ["error: 1 of 2 hosts cannot take part", f"  {reason}", "", f"hint: {hint}"]
        lines.append("more: `ronde explain not_started`")
        assert messages(result).splitlines() == lines
    known.unlink(missing_ok=True)
    result = lab.run(horovodrun(), "-np", "1", "-H", "node-b:1", "-p", PORT, "--ssh-strict", "true")
    assert "ssh does not know its host key, and `--ssh-strict` was given" in messages(result)
    # Without the option the key is accepted the first time.
    result = lab.run(horovodrun(), "-np", "1", "-H", "node-b:1", "-p", PORT, "true")
    assert result.returncode == 0, result.stderr
    assert "node-b" in known.read_text()


def test_a_changed_host_key_is_refused_with_a_fix(own_lab):
    command = (horovodrun(), "-np", "1", "-H", "node-b:1", "-p", PORT, "true")
    assert own_lab.run(*command).returncode == 0
    host = own_lab.hosts[1]
    host.stop()
    host.new_key()
    host.start()
    own_lab.hosts[0].enter("ip", "neigh", "flush", "all")
    result = own_lab.run(*command)
    assert result.returncode == 1
    assert "`node-b`: ssh refuses it because its host key has changed" in messages(result)
    assert "`ssh-keygen -R '[node-b]:2222'`" in messages(result)


def test_a_host_without_ronde_or_with_another_version_is_reported_with_what_to_install(
    lab, tmp_path
):
    # On the other host, the launcher's path does not exist or has another version.
    folder = tmp_path / "bin"
    folder.mkdir()
    launcher = folder / "horovodrun"
    shutil.copy(horovodrun(), launcher)
    command = (launcher, "-np", "1", "-H", "node-b:1", "-p", PORT, "true")
    host = lab.hosts[1]
    try:
        empty = tmp_path / "empty"
        empty.mkdir()
        host.enter("mount", "--bind", empty, folder)
        result = lab.run(*command)
        assert result.returncode == 1
        assert messages(result).startswith(
            "error: `node-b`: Ronde is not installed there, or `horovodrun` is not in the PATH"
        )
        assert "`pip install " in messages(result)
        other = empty / "horovodrun"
        other.write_text("#!/bin/sh\necho ronde-agent 0.28.1+ronde.0.0.9\ncat > /dev/null\n")
        other.chmod(0o755)
        result = lab.run(*command)
        assert result.returncode == 1
        assert "`node-b`: it runs Ronde 0.28.1+ronde.0.0.9, but this launcher is" in messages(
            result
        )
    finally:
        host.enter("umount", "--lazy", folder)


def test_a_rank_on_another_host_that_lacks_a_module_is_named(lab):
    program = "import horovod, no_such_framework"
    command = ("-np", "2", "-H", hosts(2), "-p", PORT, sys.executable, "-c", program)
    result = lab.run(horovodrun(), *command)
    assert result.returncode == 1
    assert re.search(
        r"error: rank \d \(node-[ab], slot 0\) raised ModuleNotFoundError: No module named "
        r"'no_such_framework'",
        messages(result),
    )


def test_hosts_that_cannot_reach_each_other_are_named_with_their_addresses(own_lab):
    _, second, third = own_lab.hosts
    third.lose(second)
    command = ("-np", "3", "-H", hosts(), "-p", PORT, "true")
    result = own_lab.run(horovodrun(), *command)
    assert result.returncode == 1
    text = messages(result)
    assert text.startswith("error: some hosts cannot reach each other\n")
    line = rf"  `node-c` cannot reach `node-b`: {re.escape(second.address)}:\d+ timed out\n"
    assert re.search(line, text), text
    assert "hint: a timeout usually means a firewall" in text


def test_duplicate_and_unreachable_addresses_are_not_used(own_lab, tmp_path):
    # Every host has the same bridge address, and the second also has an unreachable one.
    for host in own_lab.hosts:
        host.enter("ip", "link", "add", "docker0", "type", "bridge")
        host.enter("ip", "addr", "add", "172.17.0.1/16", "dev", "docker0")
        host.enter("ip", "link", "set", "docker0", "up")
    own_lab.hosts[1].enter("ip", "addr", "add", "10.66.6.6/32", "dev", "lo")
    path = script(tmp_path, WORK)
    command = ("--verbose", "-np", "3", "-H", hosts(), "-p", PORT, sys.executable, path)
    start = time.monotonic()
    result = own_lab.run(horovodrun(), *command)
    assert result.returncode == 0, result.stderr
    assert time.monotonic() - start < 30
    listening = re.findall(r"its ranks listen on \[([^]]*)\]", result.stderr)
    assert listening == [host.address for host in own_lab.hosts]


def test_interfaces_are_chosen_by_name_and_need_not_match(lab):
    first, second, _ = lab.hosts
    names = f"{first.interface},{second.interface}"
    command = ("-np", "2", "-H", hosts(2), "-p", PORT, "--network-interfaces")
    result = lab.run(horovodrun(), *command, names, "hostname")
    assert result.returncode == 0, result.stderr
    result = lab.run(horovodrun(), *command, first.interface, "hostname")
    assert result.returncode == 1
    assert "`node-b`: none of the interfaces that `--network-interfaces` names" in messages(result)
    assert f"also name one of its interfaces: `{second.interface}`" in messages(result)


def test_a_host_that_accepts_ssh_but_hangs_is_named_in_time(lab, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy(horovodrun(), folder / "horovodrun")
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "horovodrun").write_text("#!/bin/sh\necho Welcome\nexec sleep 100\n")
    (slow / "horovodrun").chmod(0o755)
    host = lab.hosts[1]
    host.enter("mount", "--bind", slow, folder)
    try:
        command = ("-np", "2", "-H", hosts(2), "-p", PORT, "--start-timeout", "2", "true")
        result = lab.run(folder / "horovodrun", *command)
    finally:
        host.enter("umount", "--lazy", folder)
    assert result.returncode == 1
    assert messages(result) == (
        "error: 1 of 2 hosts cannot take part\n  `node-b`: it has not answered within 2 s\n\n"
        "hint: check that `ssh node-b true` works; `--start-timeout` sets how long to wait\n"
        "more: `ronde explain not_started`\n"
    )


def launch(lab, tmp_path, body, *options):
    """Starts a job on all hosts that runs until it is killed; returns once all ranks train."""
    mark = uuid.uuid4().hex
    output = tmp_path / "output"
    path = script(tmp_path, body)
    command = ("-np", "3", "-H", hosts(), "-p", PORT, *options, sys.executable, path)
    with output.open("w") as file:
        job = lab.start(horovodrun(), *command, env={"LAB_MARK": mark}, stdout=file, stderr=file)
    end = time.monotonic() + 40
    while output.read_text().count("training") < 3:
        assert time.monotonic() < end and job.poll() is None, output.read_text()
        time.sleep(0.05)
    return job, output, mark


def assert_nothing_left(mark, limit=15):
    end = time.monotonic() + limit
    while left := marked(f"LAB_MARK={mark}"):
        assert time.monotonic() < end, left
        time.sleep(0.05)


def test_a_host_that_dies_during_training_is_noticed_by_all_ranks_within_seconds(own_lab, tmp_path):
    job, output, mark = launch(own_lab, tmp_path, ENDLESS)
    start = time.time()
    own_lab.hosts[2].unplug()
    assert job.wait(30) == 1
    text = output.read_text()
    raised = re.findall(r"raised ([\d.]+) HorovodInternalError lost rank 2 \(node-c", text)
    assert len(raised) == 2, text
    assert max(map(float, raised)) - start < 4, text
    assert "error: lost host `node-c`: it stopped responding" in text
    # The processes on the disconnected host end by themselves.
    assert_nothing_left(mark)


def test_a_frozen_host_is_named_may_resume_and_is_lost_after_the_stall_limit(lab, tmp_path):
    options = ("--stall-check-shutdown-time-seconds", "12")
    job, output, mark = launch(lab, tmp_path, ENDLESS, *options)

    def until(words, limit=50):
        end = time.monotonic() + limit
        while words not in output.read_text():
            assert time.monotonic() < end and job.poll() is None, output.read_text()
            time.sleep(0.05)

    # Like `docker pause`: no process runs, but the kernel still acknowledges packets.
    host = lab.hosts[1]
    host.signal(signal.SIGSTOP)
    try:
        until("[ronde] host `node-b` has not answered for")
        assert "rank 1 (node-b" not in output.read_text(), "the host is named instead of its ranks"
        host.signal(signal.SIGCONT)
        until("[ronde] host `node-b` answers again after")
        host.signal(signal.SIGSTOP)
        assert job.wait(50) == 1
    finally:
        host.signal(signal.SIGCONT)
    text = output.read_text()
    assert "error: lost host `node-b`: it has not answered for" in text, text
    assert_nothing_left(mark)


def test_a_frozen_host_is_named_within_seconds_and_neither_ssh_nor_the_launcher_ends_the_job(
    own_lab, tmp_path
):
    with (own_lab.hosts[0].folder / "ssh_config").open("a") as config:
        # Of itself, ssh would take the host for dead after three seconds.
        config.write("  ServerAliveInterval 1\n  ServerAliveCountMax 3\n")
    job, output, mark = launch(own_lab, tmp_path, ENDLESS)
    host = own_lab.hosts[1]
    host.signal(signal.SIGSTOP)
    start = time.monotonic()
    try:
        while "[ronde] host `node-b` has not answered for" not in output.read_text():
            assert job.poll() is None and time.monotonic() < start + 30, output.read_text()
            time.sleep(0.05)
        # 10 s are promised; a busy machine may take longer.
        assert time.monotonic() < start + 20
        assert "`--stall-check-shutdown-time-seconds` limits the wait" in output.read_text()
    finally:
        host.signal(signal.SIGCONT)
    while "[ronde] host `node-b` answers again after" not in output.read_text():
        assert job.poll() is None and time.monotonic() < start + 50, output.read_text()
        time.sleep(0.05)
    job.terminate()
    job.wait(20)
    assert_nothing_left(mark)


def test_a_stopped_rank_on_another_host_is_named_with_how_to_resume_it(lab, tmp_path):
    body = ENDLESS.replace("numpy.ones(10)", "numpy.ones(4 << 20)")
    job, output, mark = launch(lab, tmp_path, body, "--stall-check-shutdown-time-seconds", "8")
    (pid,) = [pid for pid in marked(mark, "script.py") if _rank(pid) == b"HOROVOD_RANK=2"]
    os.kill(pid, signal.SIGSTOP)
    assert job.wait(50) == 1
    text = output.read_text()
    assert f"[ronde] rank 2 (node-c, slot 0) is stopped: process {pid} (" in text, text
    assert f"`kill -CONT {pid}` on node-c resumes it" in text
    assert "error: rank 2 (node-c, slot 0) was stopped (SIGSTOP), process" in text, text
    assert_nothing_left(mark)


def _rank(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return next((item for item in file.read().split(b"\0") if b"HOROVOD_RANK=" in item), b"")


def test_a_lost_ssh_connection_is_named_and_leaves_no_processes(lab, tmp_path):
    job, output, mark = launch(lab, tmp_path, ENDLESS)
    # The ssh process for the second host has this job's mark in its environment.
    (ssh,) = [pid for pid in marked(mark, "ssh\0-T") if b"node-b" in _line(pid)]
    os.kill(ssh, signal.SIGKILL)
    assert job.wait(30) == 1
    text = output.read_text()
    expected = "error: lost host `node-b`: its ssh connection was killed by signal 9 (SIGKILL)\n"
    assert expected in text, text
    assert_nothing_left(mark)


def _line(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_signaled_launcher_leaves_no_processes_on_any_host(lab, tmp_path, number):
    job, output, mark = launch(lab, tmp_path, ENDLESS)
    launcher = next(pid for pid in marked(mark, "horovodrun\0-np") if pid != os.getpid())
    os.kill(launcher, number)
    job.wait(30)
    assert_nothing_left(mark)
    if number != signal.SIGKILL:
        name = signal.Signals(number).name
        assert f"error: stopped by signal {int(number)} ({name}), along with its 3 ranks" in (
            output.read_text()
        )
        assert job.returncode == 128 + number


def test_a_second_interrupt_ends_ranks_that_ignore_the_first(lab, tmp_path):
    body = """
    import signal, time
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("training", flush=True)
    time.sleep(100)
    """
    job, _, mark = launch(lab, tmp_path, body)
    launcher = next(pid for pid in marked(mark, "horovodrun\0-np"))
    os.kill(launcher, signal.SIGINT)
    time.sleep(0.3)
    os.kill(launcher, signal.SIGINT)
    start = time.monotonic()
    assert job.wait(20) == 130
    assert time.monotonic() - start < 4
    assert_nothing_left(mark)


def test_a_host_lost_during_startup_is_named(own_lab, tmp_path):
    slow = tmp_path / "slow"
    slow.mkdir()
    # Its agent never connects, and then the host is gone.
    (slow / "horovodrun").write_text("#!/bin/sh\ntouch " + str(tmp_path / "came") + "\nsleep 100\n")
    (slow / "horovodrun").chmod(0o755)
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy(horovodrun(), folder / "horovodrun")
    own_lab.hosts[2].enter("mount", "--bind", slow, folder)
    command = ("-np", "3", "-H", hosts(), "-p", PORT, "--start-timeout", "5", "true")
    job = own_lab.start(
        folder / "horovodrun", *command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    end = time.monotonic() + 20
    while not (tmp_path / "came").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    own_lab.hosts[2].stop()
    _, text = job.communicate(timeout=30)
    assert job.returncode == 1
    assert "`node-c`: " in text and "of 3 hosts cannot take part" in text, text


def test_output_of_other_hosts_is_complete_whatever_its_bytes(lab, tmp_path):
    body = r"""
    import sys
    for number in range(3000):
        sys.stdout.write(f"{number} " + "x" * 4000 + "\n")
    sys.stdout.flush()
    sys.stdout.buffer.write(bytes(range(256)) * 4 + b"\nlast without end")
    sys.stdout.flush()
    """
    path = script(tmp_path, body)
    command = ("-np", "2", "-H", "node-b:1,node-c:1", "-p", PORT, "--output-filename")
    result = lab.run(horovodrun(), *command, tmp_path / "out", sys.executable, path)
    assert result.returncode == 0, result.stderr[-2000:]
    for rank in range(2):
        mark = f"[{rank}]<stdout>:"
        lines = [line for line in result.stdout.split("\n") if line.startswith(mark)]
        numbers = [int(line.removeprefix(mark).split()[0]) for line in lines[:3000]]
        assert numbers == list(range(3000))
        assert all(len(line) > 4000 for line in lines[:3000])
        assert lines[-1] == f"{mark}last without end"
        kept = (tmp_path / "out" / f"rank.{rank}" / "stdout").read_bytes()
        assert kept.count(b"x" * 4000) == 3000


CALLER = """
import json, subprocess, sys
import horovod

def where(ronde):
    import socket
    import numpy
    import horovod.raw as hvd

    hvd.init()
    total = hvd.allreduce(numpy.ones(2), op=hvd.Sum).tolist()
    status = None
    if hvd.rank() == 0:
        look = [ronde, "status", "--once", "--json"]
        status = json.loads(subprocess.run(look, stdout=subprocess.PIPE, check=True).stdout)
    hvd.allreduce(numpy.ones(2), name="end")
    return socket.gethostname(), total, status

ronde, hosts, port = sys.argv[1:]
results = horovod.run(where, (ronde,), num_proc=3, hosts=hosts, ssh_port=int(port))
print(json.dumps(results))
"""


def test_a_function_runs_on_other_hosts_and_its_status_can_be_queried(lab, tmp_path):
    ronde = str(Path(horovodrun()).with_name("ronde"))
    path = script(tmp_path, CALLER)
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    result = lab.run(sys.executable, path, ronde, hosts(), PORT, env=env)
    assert result.returncode == 0, result.stderr
    results = json.loads(result.stdout)
    assert [name for name, _, _ in results] == ["node-a", "node-b", "node-c"]
    assert all(total == [3.0, 3.0] for _, total, _ in results)
    ranks = results[0][2]["ranks"]
    assert [(rank["host"], rank["state"]) for rank in ranks] == [
        ("node-a", "joined"),
        ("node-b", "joined"),
        ("node-c", "joined"),
    ]
    assert all(rank["report"]["collectives"] >= 1 for rank in ranks)


def test_bench_measures_collectives_across_hosts(lab, tmp_path):
    ronde = Path(horovodrun()).with_name("ronde")
    # No rank runs on the host of the command.
    line = "bench -np 2 -H node-b:1,node-c:1 --sizes 4,64K --rounds 2 --json"
    result = lab.run(ronde, *line.split(), tmp_path / "figures.json", "-p", PORT)
    assert result.returncode == 0, result.stderr
    assert "## 2 ranks on 2 hosts" in result.stdout
    (run,) = json.loads((tmp_path / "figures.json").read_text())["runs"]
    assert (run["ranks"], run["hosts"]) == (2, 2)
    assert [row["bytes"] for row in run["rows"]] == [4, 64 << 10]
    assert all(row["systems"]["ronde"]["median"] > 0 for row in run["rows"])


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_tensorflows_own_workers_connect_across_hosts(lab, tmp_path):
    path = script(
        tmp_path,
        """
        import tensorflow as tf
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with strategy.scope():
            variable = tf.Variable(0.0)

        @tf.function
        def step():
            context = tf.distribute.get_replica_context()
            mine = tf.cast(context.replica_id_in_sync_group, tf.float32) + 1.0
            return context.all_reduce(tf.distribute.ReduceOp.SUM, mine)

        total = strategy.run(step)
        print("total", float(total), strategy.num_replicas_in_sync, flush=True)
        """,
    )
    command = ("-np", "2", "-H", hosts(2), "-p", PORT, sys.executable, path)
    result = lab.run(horovodrun(), *command, env={"TF_CPP_MIN_LOG_LEVEL": "3"})
    assert result.returncode == 0, result.stderr[-3000:]
    assert sorted(result.stdout.splitlines()) == [
        f"[{rank}]<stdout>:total 3.0 2" for rank in (0, 1)
    ]
