"""Tensors on GPUs, submitted from Python as torch's are, in real processes on stand-in GPUs."""

import os
import signal
from pathlib import Path

import pytest
from jobs import RAW, Job

from standin import environment

pytestmark = pytest.mark.timeout(60)

HERE = Path(__file__).resolve().parent
PATHS = [os.fspath(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
# With NCCL on a GPU each, and through host memory: an old NCCL refuses two ranks on one GPU.
NCCL, HOST = "devices=4,lag=1ms", "devices=1,nccl=22809,lag=1ms"

START = """
from types import SimpleNamespace
import numpy as np
from horovod import _native
from xla import Gpu

AVERAGE, SUM, ADASUM = 0, 1, 2
IS_APART = "devices=4" in os.environ["RONDE_STANDIN_GPU"]
gpu = Gpu(RANK if IS_APART else 0)


class Tensor:
    # What the native module asks of a tensor.
    def __init__(self, array):
        self.array = array
        self.dtype, self.shape = array.dtype, list(array.shape)
        self.device = SimpleNamespace(type="cuda", index=RANK if IS_APART else 0)

    def is_contiguous(self):
        return True

    def data_ptr(self):
        return self.array.address.value or 0

    def values(self):
        return gpu.read(self.array).tolist()


def tensor(values, dtype="float32"):
    return Tensor(gpu.array(np.asarray(values, dtype)))


def allocate(like, rows, stream):
    assert stream == gpu.stream.value
    # The engine's own thread may ask.
    gpu.enter()
    return Tensor(gpu.empty((rows, *like.shape[1:]), like.dtype))


def current_stream(index):
    if index == (RANK if IS_APART else 0):
        return gpu.stream.value
    other = Gpu(index).stream.value
    gpu.enter()
    return other


_native.use_streams(current_stream, allocate)


def allreduce(given, name, op=SUM):
    return _native.wait(_native.allreduce(given, given, name, op, 1.0, 1.0, True))
"""


def job(folder, settings, *parts, size=2, options=(), **env):
    env = {**environment(settings), "PYTHONPATH": os.pathsep.join(PATHS), **env}
    return Job(folder, size, START, *parts, api=RAW, env=env, options=options)


COLLECTIVES = """
hvd.init()
for step in range(3):
    assert allreduce(tensor([RANK, 2.0]), "x", AVERAGE).values() == [0.5, 2.0]
handles = [_native.allreduce(each, each, f"a{i}", SUM) for i, each in enumerate(
    [tensor(np.full(i + 1, RANK)) for i in range(20)]
)]
for number, handle in enumerate(handles):
    assert _native.wait(handle).values() == [1.0] * (number + 1)
group = [tensor([1.0]), tensor([[2.0, RANK]])]
results = _native.wait(_native.grouped_allreduce(group, group, "g", SUM))
assert [each.values() for each in results] == [[2.0], [[4.0, 1.0]]]
rows, counts = _native.wait(_native.allgather(tensor(np.full((RANK + 1, 2), RANK)), "r"))
assert (rows.values(), counts) == ([[0.0] * 2] + [[1.0] * 2] * 2, [1, 2])
sent, counts = _native.wait(_native.alltoall(tensor([10 * RANK, 1, 2], "int16"), [1, 2], "t"))
assert sent.values() == ([0, 10] if RANK == 0 else [1, 2, 1, 2]), sent.values()
made = _native.wait(_native.grouped_reducescatter([tensor([1.0, 2.0])] * 2, "s", SUM))
assert [each.values() for each, _ in made] == [[2.0 * (RANK + 1)]] * 2
assert _native.wait(_native.broadcast(*[tensor([RANK])] * 2, "b", 1)).values() == [1.0]
_native.finish_on_gpu()
for _ in range(2):
    assert allreduce(tensor([3.0] * 5), "y", ADASUM).values() == [3.0] * 5

# Nothing is ready before the gate opens; the host goes on.
open_gate = gpu.close_gate()
late = tensor([1.0, 2.0])
handle = _native.allreduce(late, late, "late", SUM)
while not _native.poll(handle) and not gpu.is_busy():
    pass
assert not _native.poll(handle)
_native.wait(handle)
open_gate()
assert late.values() == [2.0, 4.0]
assert _native.nccl_version() in (23007, 22809) and _native.has_cuda()
say("done")
hvd.shutdown()
"""


def test_collectives_run_in_the_order_of_the_stream(tmp_path):
    with job(tmp_path, NCCL, COLLECTIVES) as running:
        running.hear("done")
        assert running.wait() == 0, running.output()
        # NCCL has no Adasum: that alone goes through host memory.
        notes = [line for line in running.output().splitlines() if "host memory" in line]
        assert len(notes) == 1 and "`y` goes through host memory" in notes[0], notes


THROUGH_HOST = COLLECTIVES.partition("# Nothing is ready")[0] + 'say("done")\n'


def test_without_nccl_they_go_through_host_memory_and_one_message_says_why(tmp_path):
    with job(tmp_path, HOST, THROUGH_HOST, size=2) as running:
        running.hear("done")
        assert running.wait() == 0, running.output()
        notes = [line for line in running.output().splitlines() if "through host memory" in line]
        assert len(notes) == 1 and "ranks 0, 1 share a GPU" in notes[0], running.output()


MISTAKES = """
hvd.init()
allreduce(tensor([1.0]), "x")
errors = []
def refused(call):
    try:
        call()
    except Exception as error:
        errors.append(f"{type(error).__name__}: {error}")
other = tensor([1.0])
other.device.index = RANK + 2
refused(lambda: allreduce(other, "other"))
odd = tensor([1.0])
odd.device.type = "xpu"
refused(lambda: allreduce(odd, "odd"))
host = np.ones(1, "float32")
refused(lambda: _native.wait(_native.allreduce(tensor([1.0]), host, "mixed", SUM)))
assert allreduce(tensor([1.0]), "x").values() == [2.0]
say("errors", errors=errors)
"""


def test_wrong_devices_are_named(tmp_path):
    with job(tmp_path, NCCL, MISTAKES) as running:
        for rank, event in enumerate(running.hear("errors")):
            other, odd, mixed = event["errors"]
            assert f"is on GPU {rank + 2}, but this rank's earlier tensors" in other, other
            assert "on the CPU or on an NVIDIA GPU, and this one is on xpu" in odd, odd
            assert "are on different devices" in mixed, mixed
        assert running.wait() == 0, running.output()


KILLED = """
hvd.init()
allreduce(tensor([1.0] * 100), "x")
gpu.configure("hang=ncclAllReduce")
stuck = tensor([1.0] * 100)
# It is launched, and never ends by itself.
allreduce(stuck, "x")
say("launched")
if RANK == 2:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
start = time.monotonic()
# The caller's stream waits for it until the world ends.
stuck.values()
say("free", seconds=time.monotonic() - start)
try:
    allreduce(tensor([1.0]), "y")
except Exception as error:
    say("error", text=str(error), name=type(error).__name__)
try:
    _native.finish_on_gpu()
except Exception as error:
    say("refused", text=str(error))
"""


def test_a_death_ends_what_the_others_have_on_their_gpus(tmp_path):
    with job(tmp_path, NCCL, KILLED, size=4) as running:
        running.hear("launched")
        running.hear("free", [0, 1, 3])
        for event in running.hear("error", [0, 1, 3]):
            assert event["name"] == "HorovodInternalError"
            assert "rank 2" in event["text"] and "SIGKILL" in event["text"], event
        # What the interrupted collective left behind must not be saved.
        for event in running.hear("refused", [0, 1, 3]):
            assert "rank 2" in event["text"], event
        assert running.wait() == 128 + signal.SIGKILL


ELASTIC = """
from horovod.common.elastic import ObjectState, run_fn

hvd.init()
KILLED = os.path.join(os.environ["SAY_FOLDER"], "killed")

def train(state):
    while state.step < 12:
        if state.step == 5 and hvd.rank() == hvd.size() - 1 and not os.path.exists(KILLED):
            open(KILLED, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        total = allreduce(tensor([1.0] * 10), "x").values()
        assert total == [float(hvd.size())] * 10, total
        state.step += 1
        state.commit()
    say("finished", size=hvd.size(), step=state.step)

def reset():
    hvd.shutdown()
    hvd.init()

state = ObjectState(lambda object: object, hvd.rank, step=0)
run_fn(train, reset)(state)
"""


def test_an_elastic_job_goes_on_with_new_communicators(tmp_path):
    options = ("--min-np", "2", "--max-np", "3", "-H", "localhost:3")
    with job(tmp_path, NCCL, ELASTIC, size=3, options=options) as running:
        assert running.wait() == 0, running.output()
        events = [each for rank in range(3) for each in running.events(rank)]
        finished = [each for each in events if each["event"] == "finished"]
        # On a slow machine, another rank may have come in place of the killed one.
        assert len(finished) == finished[0]["size"] >= 2, events
        assert {each["step"] for each in finished} == {12}, events
