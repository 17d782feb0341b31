"""Jobs under the conditions of containers: limits, no privileges, no shared memory.

Each test runs in a container of `containers.py`, with its own processes, network and file systems
and a `/dev/shm` of 1 MiB.
"""

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest
from lab import horovodrun, why_not

from containers import ContainerLab

REASON = why_not()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(60),
]

# More than fits into `/dev/shm`.
WORK = """
import horovod.raw as hvd
import numpy

hvd.init()
numbers = numpy.arange(1 << 20, dtype=numpy.float64)
total = hvd.allreduce(numbers * (hvd.rank() + 1), op=hvd.Sum)
assert (total == numbers * (hvd.size() * (hvd.size() + 1) // 2)).all()
print("done", hvd.rank(), flush=True)
"""
# Makes the kernel refuse `memfd_create`, as a strict seccomp profile does, and runs a command.
REFUSE = """
import ctypes, os, platform, struct, sys

number = {"x86_64": 319, "aarch64": 279}[platform.machine()]
load, equal, give = 0x20, 0x15, 0x06
refuse, allow = 0x00050000 | 1, 0x7FFF0000
steps = [(load, 0, 0, 0), (equal, 0, 1, number), (give, 0, 0, refuse), (give, 0, 0, allow)]
program = b"".join(struct.pack("HBBI", *step) for step in steps)
code = ctypes.create_string_buffer(program)
filter = ctypes.create_string_buffer(struct.pack("H6xP", len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
address = ctypes.c_void_p(ctypes.addressof(filter))
assert libc.prctl(22, 2, address, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execvp(sys.argv[1], sys.argv[1:])
"""
NO_CAPABILITIES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
READ_ONLY = ("unshare", "--mount", "sh", "-c", 'mount -o remount,bind,ro / && exec "$@"', "sh")


@pytest.fixture(scope="module")
def container(tmp_path_factory):
    with ContainerLab(tmp_path_factory.mktemp("one"), [range(29600, 29602)]) as lab:
        yield lab


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(WORK))
    return path


@pytest.fixture
def quota():
    """A control group with half a CPU, 64 processes and 2 GiB; yields what joins it."""
    unified = Path("/sys/fs/cgroup/cgroup.controllers")
    root = Path("/sys/fs/cgroup")
    two = unified.exists() and "cpu" in unified.read_text().split()
    folders = [root / f"ronde-test-{os.getpid()}"]
    if not two:
        kinds = ("cpu", "memory", "pids")
        folders = [root / kind / f"ronde-test-{os.getpid()}" for kind in kinds]
    values = {"cpu.max": "50000 100000", "memory.max": "2147483648", "pids.max": "64"}
    if not two:
        values = {"cpu.cfs_quota_us": "50000", "memory.limit_in_bytes": "2147483648"}
        values["pids.max"] = "64"
    try:
        for folder in folders:
            folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be created here: {error}")
    for folder in folders:
        for name in values:
            if (folder / name).exists():
                (folder / name).write_text(values[name])
    join = "".join(f"echo $$ > {folder}/cgroup.procs && " for folder in folders)
    yield ("sh", "-c", f'{join}exec "$@"', "sh")
    for folder in folders:
        folder.rmdir()


def doctor(container, *before):
    ronde = Path(horovodrun()).with_name("ronde")
    result = container.run(*before, ronde, "doctor", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(result.stdout)
    return document, document["hosts"][0]["facts"]


@pytest.mark.parametrize("before", [(), NO_CAPABILITIES, READ_ONLY, (*READ_ONLY, *NO_CAPABILITIES)])
def test_a_job_needs_no_privileges_and_no_room_in_dev_shm(container, script, before):
    command = (horovodrun(), "-np", "2", sys.executable, script)
    result = container.run(*before, *command, env={"TMPDIR": "/dev/shm"})
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("done") == 2 and "TCP" not in result.stderr, result.stderr


def test_without_shared_memory_ranks_use_tcp_and_say_why(container, script):
    refuse = (sys.executable, "-c", REFUSE)
    result = container.run(*refuse, horovodrun(), "-np", "2", sys.executable, script)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("done") == 2
    assert "uses TCP instead of shared memory" in result.stderr, result.stderr
    assert "allow it in the container's seccomp profile" in result.stderr
    document, facts = doctor(container, *refuse)
    assert facts["confinement"]["seccomp"], facts
    found = [each["what"] for each in document["findings"]]
    assert any("cannot share memory and use TCP instead: memfd_create" in what for what in found)


def test_the_quota_of_a_container_counts_as_its_cpus_and_is_shown(container, script, quota):
    result = container.run(*quota, horovodrun(), "-np", "auto", sys.executable, script)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("done") == 1, "half a CPU is enough for one rank"
    document, facts = doctor(container, *quota)
    confinement = facts["confinement"]
    assert facts["cpus"]["usable"] == 1
    assert confinement["cpu_quota_millis"] == 500, confinement
    assert confinement["memory_limit_bytes"] == facts["memory"]["total_bytes"] == 2 << 30
    assert confinement["process_limit"] == 64
    found = [each["what"] for each in document["findings"]]
    assert any("may have only 64 processes and threads" in what for what in found), found


def test_doctor_says_what_it_is_in_and_what_it_may_do(container):
    ronde = Path(horovodrun()).with_name("ronde")
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "COLUMNS": "300"}
    result = container.run(*READ_ONLY, *NO_CAPABILITIES, ronde, "doctor", env=env)
    assert result.returncode == 0, result.stdout + result.stderr
    for word in ("Kubernetes", "capabilities", "none", "read-only"):
        assert word in result.stdout, result.stdout
    _, facts = doctor(container)
    # Which kind depends on the machine, which may be a container itself.
    assert facts["confinement"]["container"], facts["confinement"]
    assert facts["shm_bytes"] == 1 << 20
