"""Complete JAX programs: the example, a rank that dies, and jax.distributed."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import Job

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "20-jax-digits" / "train.py"
pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.version_info < (3, 10), reason="JAX needs Python 3.10"),
]


def test_the_example_learns_and_its_ranks_agree():
    command = ["horovodrun", "-np", "2", sys.executable, str(EXAMPLE), "--epochs", "8"]
    job = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)
    assert job.returncode == 0, job.stderr
    assert float(re.search(r"2 rank\(s\): accuracy ([\d.]+)", job.stdout).group(1)) > 0.9
    assert "parameters are the same on every rank" in job.stdout


DYING = """
import jax
import horovod.jax as hvj

hvj.init()
program = jax.jit(lambda x: hvj.allreduce(x, hvj.Sum))
program(jax.numpy.ones(3)).block_until_ready()
hvj.barrier()
if RANK == 1:
    os.kill(os.getpid(), signal.SIGKILL)
errors = []
for call in (lambda: program(jax.numpy.ones(3)).block_until_ready(),
             lambda: hvj.allreduce(jax.numpy.ones(3))):
    try:
        call()
    except Exception as error:
        errors.append([type(error).__name__, str(error)])
say("errors", errors=errors)
"""


def test_a_lost_rank_is_named_inside_and_outside_compiled_programs(tmp_path):
    with Job(tmp_path, 2, DYING) as job:
        (event,) = job.hear("errors", [0], limit=45)
        inside, outside = event["errors"]
        # A small program runs synchronously, and JAX then raises a different class.
        assert inside[0] in ("JaxRuntimeError", "XlaRuntimeError", "ValueError")
        assert outside[0] == "HorovodInternalError"
        for _, text in event["errors"]:
            assert "rank 1" in text
            assert "SIGKILL" in text
        assert job.wait() == 128 + signal.SIGKILL
        job.assert_nothing_left()


WORLD = """
import jax
import horovod.jax as hvj

hvj.init()
hvj.init_jax_distributed()
say("world", processes=jax.process_count(), index=jax.process_index(),
    devices=len(jax.devices()), own=len(jax.local_devices()),
    sum=float(jax.jit(lambda x: hvj.allreduce(x, hvj.Sum))(jax.numpy.ones(()))))
hvj.barrier()
jax.distributed.shutdown()
"""


def test_jax_distributed_knows_all_processes(tmp_path):
    with Job(tmp_path, 2, WORLD) as job:
        for rank, event in enumerate(job.hear("world", limit=45)):
            assert (event["processes"], event["index"]) == (2, rank)
            assert event["devices"] == 2 * event["own"]
            assert event["sum"] == 2.0
        assert job.wait() == 0, job.output()
