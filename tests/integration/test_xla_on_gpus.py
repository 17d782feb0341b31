"""The handlers for compiled programs on NVIDIA GPUs, called as XLA does, on stand-in GPUs."""

import os
import signal
from pathlib import Path

import pytest
from jobs import RAW, Job

from standin import environment

pytestmark = pytest.mark.timeout(60)

HERE = Path(__file__).resolve().parent
PATHS = [os.fspath(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
# With NCCL on two GPUs, and through host memory: an old NCCL refuses two ranks on one GPU.
NCCL, HOST = "devices=2,lag=2ms", "devices=1,nccl=22809,lag=2ms"

START = """
import numpy as np
from horovod import _native
from xla import Array, Gpu, Xla, XlaError

hvd.init()
gpu = Gpu(RANK if "devices=2" in os.environ["RONDE_STANDIN_GPU"] else 0)
xla = Xla(gpu.stream)
PLAIN = {"prescale": 1.0, "postscale": 1.0}
AVERAGE, SUM, MAX = 0, 1, 4


def own(shape, dtype="float32"):
    return gpu.array(np.full(shape, RANK + 1, dtype))


def failure(*arguments, platform="CUDA", via=xla, **options):
    try:
        via.call(platform, *arguments, **options)
    except XlaError as error:
        return error.args
"""


def job(folder, settings, script, size=2, **env):
    env = {**environment(settings), "PYTHONPATH": os.pathsep.join(PATHS), **env}
    return Job(folder, size, START, script, api=RAW, env=env)


COLLECTIVES = """
# Operands of several types are several submissions; one has no elements, and one is in place.
for step in range(3):
    operands = [own(1000), own((2, 3), "float16"), own((0, 4)), own((), "complex64"), own(5)]
    results = [gpu.empty(each.shape, each.dtype) for each in operands[:-1]] + [operands[-1]]
    xla.call("CUDA", "allreduce", operands, results, name="x", op=AVERAGE, **PLAIN)
    for result in results:
        assert (gpu.read(result) == 1.5).all(), (step, gpu.read(result))
    # The next operands are computed from these results, on the same stream. The last one is only
    # there for the order.
    again = gpu.empty((1000,), "float32")
    last = results[1]
    xla.call("CUDA", "allreduce", [results[0], last], [again], name="y", op=SUM, tokens=1, **PLAIN)
    assert (gpu.read(again) == 3).all() and (gpu.read(last) == 1.5).all()

rows, gathered = own((2, 3)), gpu.empty((4, 3), "float32")
xla.call("CUDA", "allgather", [rows], [gathered], name="g")
assert gpu.read(gathered).tolist() == [[1.0] * 3] * 2 + [[2.0] * 3] * 2

received = gpu.empty((4,), "uint32")
numbers = np.arange(4, dtype="uint32") + 10 * RANK
xla.call("CUDA", "alltoall", [gpu.array(numbers)], [received], name="a", members=2)
assert gpu.read(received).tolist() == [2 * RANK, 2 * RANK + 1, 2 * RANK + 10, 2 * RANK + 11]

share = gpu.empty((2,), "float32")
xla.call("CUDA", "reducescatter", [own(4)], [share], name="s", op=SUM, **PLAIN)
assert gpu.read(share).tolist() == [3, 3]

sent = gpu.empty((5,), "int32")
xla.call("CUDA", "broadcast", [own(5, "int32")], [sent], name="b", root=1)
assert gpu.read(sent).tolist() == [2] * 5

# An unexpected number of rows is an error, and the ranks stay together.
text = failure("allgather", [own((RANK + 1, 3))], [gpu.empty((2, 3), "float32")], name="r")
assert text[0] == 3 and "this one expects 2 rows from all ranks together" in text[1], text
assert "complex numbers" in failure(
    "allreduce", [own(1, "complex64")], [own(1, "complex64")], name="c", op=MAX, **PLAIN
)[1]
say("done")
"""


@pytest.mark.parametrize("settings", [NCCL, HOST], ids=["nccl", "host"])
def test_collectives_run_in_the_order_of_the_programs_stream(tmp_path, settings):
    with job(tmp_path, settings, COLLECTIVES) as running:
        running.hear("done")
        assert running.wait() == 0, running.output()
        output = running.output()
        assert ("GPU tensors go through host memory" in output) == (settings == HOST), output


GATE = """
operand, result = own(3), gpu.empty((3,), "float32")
xla.call("CUDA", "allreduce", [operand], [result], name="x", op=SUM, **PLAIN)
gpu.read(result)
# The operand of the next call is not there before the gate opens.
open_gate = gpu.close_gate()
late = own(3)
xla.call("CUDA", "allreduce", [late], [result], name="x", op=AVERAGE, **PLAIN)
for step in range(8):
    xla.call("CUDA", "allreduce", [result], [result], name="y", op=SUM, **PLAIN)
shares = gpu.empty((6,), "float32")
xla.call("CUDA", "allgather", [result], [shares], name="z")
assert gpu.is_busy()
open_gate()
assert gpu.read(shares).tolist() == [1.5 * 2**8] * 6
say("done")
"""


def test_the_host_does_not_wait_for_the_gpu(tmp_path):
    with job(tmp_path, NCCL, GATE) as running:
        running.hear("done")
        assert running.wait() == 0, running.output()


MISTAKES = """
xla.call("CUDA", "allreduce", [own(3)], [own(3)], name="x", op=SUM, **PLAIN)
texts = [failure("allreduce", [own(3)], [own(3)], via=Xla(), name="x", op=SUM, **PLAIN)]
for symbol in ("cuStreamGetCtx", "cuEventRecord"):
    gpu.configure(f"fail={symbol}:1")
    texts.append(failure("allreduce", [own(3)], [own(3)], name="x", op=SUM, **PLAIN))
# One rank's array is in host memory.
hvd.barrier()
if RANK == 0:
    host = [Array.on_host(np.ones(3, "float32")) for _ in range(2)]
    arguments = ("allreduce", [host[0]], [host[1]])
    texts.append(failure(*arguments, platform="cpu", name="z", op=SUM, **PLAIN))
else:
    texts.append(failure("allreduce", [own(3)], [own(3)], name="z", op=SUM, **PLAIN))
hvd.barrier()
say("texts", texts=texts)
# The other rank is lost while this one waits in a handler.
if RANK == 1:
    os.kill(os.getpid(), signal.SIGKILL)
say("lost", text=failure("allreduce", [own(3)], [own(3)], name="w", op=SUM, **PLAIN))
try:
    _native.finish_on_gpu()
except Exception as error:
    say("refused", text=str(error))
"""


def test_every_mistake_is_an_error_of_the_program(tmp_path):
    with job(tmp_path, NCCL, MISTAKES) as running:
        for event in running.hear("texts"):
            no_stream, no_context, no_event, mixed = event["texts"]
            assert no_stream == [12, "there is no stream"]
            assert "CUDA error 999 in cuStreamGetCtx" in no_context[1]
            assert "CUDA error 999 in cuEventRecord" in no_event[1]
            assert mixed[0] == 9
            assert "CPU" in mixed[1] and "GPU" in mixed[1]
        (event,) = running.hear("lost", [0])
        assert "rank 1" in event["text"][1] and "SIGKILL" in event["text"][1]
        # An elastic state must not save what the interrupted program has left.
        (event,) = running.hear("refused", [0])
        assert "rank 1" in event["text"], event
        assert running.wait() == 128 + signal.SIGKILL


ALONE = """
result = gpu.empty((3,), "float32")
for factor in (1.0, 2.0):
    factors = {"prescale": factor, "postscale": 1.0}
    xla.call("CUDA", "allreduce", [own(3)], [result], name="x", op=SUM, **factors)
    assert gpu.read(result).tolist() == [factor] * 3
xla.call("CUDA", "allgather", [own(3)], [result], name="g")
assert gpu.read(result).tolist() == [1.0] * 3
say("done")
"""


def test_a_world_of_one_copies(tmp_path):
    with job(tmp_path, NCCL, ALONE, size=1) as running:
        running.hear("done")
        assert running.wait() == 0, running.output()


WITHOUT_DRIVER = """
xla = Xla(gpu.stream)
say("text", text=failure("allreduce", [own(3)], [own(3)], name="x", op=SUM, **PLAIN))
"""


def test_without_a_driver_the_error_says_so(tmp_path):
    # The test opens the stand-in, and then our module is told to open something else.
    swap = "import os; os.environ['RONDE_CUDA'] = '/nowhere/libcuda.so.1'\n"
    with job(tmp_path, NCCL, swap + WITHOUT_DRIVER, size=1) as running:
        (event,) = running.hear("text")
        assert "the NVIDIA driver cannot be opened: " in event["text"][1]
        assert running.wait() == 0, running.output()
