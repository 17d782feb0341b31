"""Worlds that span two hosts, which are network namespaces."""

import struct

import pytest
from hosts import capture, two_hosts, why_not
from jobs import Job

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

# Ranks 2 and up move to the second host before they do anything else.
MOVE = """
import os, sys
if int(os.environ["HOROVOD_RANK"]) >= 2 and "MOVED" not in os.environ:
    os.environ["MOVED"] = "1"
    os.execvp("ip", ["ip", "netns", "exec", os.environ["OTHER"], sys.executable, *sys.argv])
"""

# A value that is unusual enough to be recognized on the cable.
SECRET = 1234.5678
WORK = f"""
hvd.init()
size, rank = hvd.size(), hvd.rank()
whole = torch.arange(300_001, dtype=torch.float32)
total = hvd.allreduce(whole * (rank + 1), op=hvd.Sum)
assert torch.equal(total, whole * 10), total
few = hvd.allreduce(torch.tensor([rank + 1.0]), op=hvd.Average)
assert few.item() == 2.5
rows = hvd.allgather(torch.full((rank + 1, 3), rank))
assert rows[:, 0].tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
for root in range(size):
    assert hvd.broadcast(torch.tensor([rank]), root).item() == root
parts, splits = hvd.alltoall(torch.arange(10) + 100 * rank, splits=torch.tensor([1, 2, 3, 4]).int())
assert parts.shape[0] == size * (rank + 1) and splits.tolist() == [rank + 1] * size
mine = hvd.reducescatter(torch.arange(9.0).reshape(9, 1), op=hvd.Sum)
assert mine.shape[0] == (3 if rank == 0 else 2)
hvd.broadcast(torch.full((4096,), {SECRET}), 0)
hvd.barrier()
say("done", rank=rank)
"""


def run(tmp_path, network, **env):
    with two_hosts(network) as ((first, left), (second, _)):
        word = struct.pack("<f", SECRET) * 8
        job = Job(
            tmp_path,
            4,
            WORK,
            before=MOVE,
            prefix=["ip", "netns", "exec", first],
            options=["--network-interfaces", left],
            env={"OTHER": second, "RONDE_LOG": "debug", **env},
        )
        with capture(first, left, word) as cable, job:
            assert job.wait() == 0, job.output()
            assert all(job.said(rank, "done") for rank in range(4))
            output = job.output()
    return cable, output


def test_ranks_on_two_hosts_use_shared_memory_within_and_sockets_between_hosts(tmp_path):
    cable, output = run(tmp_path, "10.77.3")
    assert "allreduce of up to 2097152 bytes among 4 ranks on 2 hosts" in output, output
    assert "levels, because" in output
    # On a private network tensors are not encrypted.
    assert cable["found"]


def test_tensors_on_a_public_network_are_encrypted(tmp_path):
    cable, _ = run(tmp_path, "203.0.113")
    assert cable["bytes"] > 1_000_000
    assert not cable["found"]


def test_encryption_can_be_enabled_on_a_private_network(tmp_path):
    cable, _ = run(tmp_path, "10.77.4", RONDE_ENCRYPTION="on")
    assert cable["bytes"] > 1_000_000
    assert not cable["found"]
