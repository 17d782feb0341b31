"""How a program for MXNet learns of a lost rank.

MXNet needs an old NumPy, so only `make mxnet` and `make matrix` run this, in separate environments.
"""

import signal
from importlib.util import find_spec

import pytest
from jobs import Job

pytestmark = pytest.mark.skipif(find_spec("mxnet") is None, reason="MXNet is not installed")

LOST = """
import mxnet as mx
import horovod.mxnet as hvd

hvd.init()
tensor = mx.nd.ones(3)
hvd.allreduce(tensor, name="x").wait_to_read()
hvd.allgather(tensor, name="y")
if RANK == 1:
    os.kill(os.getpid(), signal.SIGKILL)
# The launcher ends the rest after a second, which may be too short to build an error.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
reports = {}
for kind, call in {
    "engine": lambda: hvd.allreduce(tensor, name="x").wait_to_read(),
    "call": lambda: hvd.allgather(tensor, name="y"),
}.items():
    try:
        call()
    except mx.base.MXNetError as error:
        lost = error if kind == "call" else hvd.HorovodInternalError.last()
        reports[kind] = [lost.ranks, lost.hosts, lost.cause]
say("lost", reports=reports)
"""


@pytest.mark.timeout(60)
def test_a_lost_rank_is_reported_as_data(tmp_path):
    with Job(tmp_path, 2, LOST, api="") as job:
        (message,) = job.hear("lost", [0])
        known = [[1], ["localhost"], "signal"]
        assert message["reports"] == {"engine": known, "call": known}
        assert job.wait() == 128 + signal.SIGKILL
