"""Idle connections to a job's listening sockets, which any user of the host can open.

A few hundred of them on the loopback address, for a few seconds, must neither keep a job from
starting nor end it.
"""

import os
import re
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from jobs import RAW, Job, until

pytestmark = pytest.mark.timeout(120)

IDLE = 400
SCRIPT = """
GO = os.path.join(os.environ["SAY_FOLDER"], "go")
while RANK == 1 and not os.path.exists(GO):
    time.sleep(0.05)
hvd.init()
tensor = numpy.ones(1 << 16, numpy.float32)
for _ in range(20):
    total = hvd.allreduce(tensor, op=hvd.Sum)
assert (total == hvd.size()).all()
say("done")
"""


def listening(pid):
    """The loopback ports and abstract unix sockets that a process listens on."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if match := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry)):
                inodes.add(match[1])
    ports, names = [], []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            ports.append(int(fields[1].split(":")[1], 16))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[6] in inodes and len(fields) > 7 and fields[7].startswith("@ronde-"):
            names.append("\0" + fields[7][1:])
    return ports, sorted(set(names))


def connect(family, address):
    """Opens an idle connection; gives up if the queue is full."""
    idle = socket.socket(family)
    idle.settimeout(0.2)
    with suppress(OSError):
        idle.connect(address)
    return idle


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_job_starts_despite_idle_connections_to_its_ranks(tmp_path, transport):
    env = {"RONDE_TRANSPORT": transport}
    with Job(tmp_path, 2, SCRIPT, api=RAW, env=env) as job, ExitStack() as idle:
        (first,) = job.hear("started", [0])
        # Rank 0 listens as soon as it waits for the other one.
        ports, names = until(
            lambda: found if any(found := listening(first["pid"])) else None, 50, job.output
        )
        assert ports and bool(names) == (transport == "auto")
        for number in range(IDLE):
            idle.enter_context(connect(socket.AF_INET, ("127.0.0.1", ports[number % len(ports)])))
            for name in names:
                idle.enter_context(connect(socket.AF_UNIX, name))
        (tmp_path / "go").touch()
        # Serving the idle connections one after another, with a timeout each, would take longer.
        job.hear("done", limit=25)
        assert job.wait() == 0, job.output()
