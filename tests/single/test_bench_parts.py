"""The parts of `ronde bench` that need no launcher: memory, gradients, scheduling, timing."""

import struct

import pytest

from horovod import _native
from horovod._bench import models
from horovod._bench.channel import Channel, Closed, listen
from horovod._bench.memory import Memory, Task, encode
from horovod._bench.scheduler import Group, Refused, Scheduler
from horovod._bench.worker import Prepared, Worker


@pytest.mark.parametrize(
    ("model", "tensors", "mebibytes"), [("resnet50", 161, 97.5), ("bert", 199, 417.6)]
)
def test_the_gradients_match_the_models(model, tensors, mebibytes):
    task = Task(model, 0, "float32", 2)
    assert len(task.counts) == tensors
    assert task.total / 2**20 == pytest.approx(mebibytes, abs=0.1)


def test_buckets_contain_every_tensor_once_and_respect_the_limit():
    places = Memory(Task("resnet50", 0, "float32", 2)).places
    rows = models.buckets(places)
    assert [place for row in rows for place in row] == places
    for row in rows:
        assert len(row) == 1 or sum(size for _, size in row) <= models.BUCKET_BYTES


def test_sizes_are_rounded_so_that_tensors_split_evenly():
    assert Task("alltoall", 4, "float32", 3).counts == [3]
    assert Task("reducescatter", 4096, "float32", 3).counts == [1026]
    assert Task("allreduce", 4096, "float64", 3).counts == [512]
    assert Task("allreduce", 1, "float64", 3).counts == [1]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "int64"])
def test_a_wrong_result_is_detected(dtype):
    memory = Memory(Task("allreduce", 1024, dtype, 2))
    memory.source.fill(encode(3, dtype))
    memory.check(memory.source.address)
    memory.source.buffer[-memory.task.element :] = encode(2, dtype)
    with pytest.raises(ValueError, match="not 3"):
        memory.check(memory.source.address)


def test_the_parts_of_other_ranks_are_checked():
    memory = Memory(Task("allgather", 64, "int32", 3))
    for parts, wrong in (([1, 2, 3], None), ([1, 1, 3], "not 2"), ([1, 2, 2], "not 3")):
        values = [part for part in parts for _ in range(16)]
        memory.target.buffer[:] = struct.pack("<48i", *values)
        if wrong is None:
            memory.check(memory.target.address)
            continue
        with pytest.raises(ValueError, match=wrong):
            memory.check(memory.target.address)


class Told:
    """Collects reported messages."""

    def __init__(self):
        self.messages = []

    def send(self, message):
        self.messages.append(message)


class Fake:
    """A system that records its calls."""

    def __init__(self, name, calls, error=None):
        self.name = name
        self.calls = calls
        self.error = error

    def barrier(self):
        pass

    def prepare(self, task, memory):
        if self.error:
            raise self.error
        return Prepared(lambda: None, run=self.run)

    def run(self, times):
        self.calls.append((self.name, times))
        return 0.005


def conducted(rounds, **systems):
    report = Told()
    scheduler = Scheduler(report, rounds, None)
    group = Group(Worker(0, systems), [])
    scheduler.systems = dict.fromkeys(systems, group)
    scheduler.measure({"collective": "allreduce", "bytes": 8, "dtype": "float32", "ranks": 1})
    return report.messages


def test_rounds_alternate_and_the_systems_take_turns_being_first():
    calls = []
    (message,) = conducted(3, ronde=Fake("ronde", calls), gloo=Fake("gloo", calls))
    # Two warm-ups of three calls each, then enough calls for a round of about 20 ms.
    assert calls[:4] == [("ronde", 3), ("ronde", 3), ("gloo", 3), ("gloo", 3)]
    assert calls[4:] == [
        *(("ronde", 4), ("gloo", 4)),
        *(("gloo", 4), ("ronde", 4)),
        *(("ronde", 4), ("gloo", 4)),
    ]
    assert message["row"]["seconds"] == {"ronde": [0.005] * 3, "gloo": [0.005] * 3}


def test_a_peer_that_fails_is_skipped_with_a_reason():
    broken = Fake("gloo", [], RuntimeError("no such collective"))
    note, row = conducted(1, ronde=Fake("ronde", []), gloo=broken)
    assert "gloo for allreduce is left out" in note["note"]
    assert "RuntimeError: no such collective" in note["note"]
    assert list(row["row"]["seconds"]) == ["ronde"]


def test_an_error_in_ronde_is_not_skipped():
    with pytest.raises(Refused, match="rank 0: ValueError: wrong"):
        conducted(1, ronde=Fake("ronde", [], ValueError("wrong")))


def test_a_worker_takes_turns_until_the_conductor_ends_or_goes(tmp_path):
    door = listen(str(tmp_path / "turns"))
    for last in ({"do": "end"}, None):
        worker = Channel.to(str(tmp_path / "turns"))
        scheduler = Channel(door.accept()[0])
        task = {"collective": "barrier", "bytes": 0, "dtype": "float32", "ranks": 1}
        scheduler.send({"do": "task", "task": task})
        if last:
            scheduler.send(last)
        else:
            scheduler.close()
        Worker(0, {}).serve(worker)
        worker.close()
        if last:
            assert scheduler.receive() == {"bytes": 0}
            with pytest.raises(Closed):
                scheduler.receive()
            scheduler.close()
    door.close()


def test_the_engine_times_its_own_calls():
    _native.init()
    memory = Memory(Task("allreduce", 1024, "float32", 1))
    memory.mark(0)
    (tensor,) = memory.tensors()
    seconds = _native.repeat_allreduce(tensor, "repeated", 5)
    assert len(seconds) == 5
    assert all(second >= 0 for second in seconds)
    memory.check(memory.source.address)
