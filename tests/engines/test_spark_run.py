"""`horovod.spark.run` on a standalone cluster of two workers with two cores each."""

import io
import os
import signal
import threading
import time

import pytest
from jobs import MARK, environments, until
from spark_cluster import executors

import horovod
import horovod.spark
from horovod.spark import stage

# On a busy machine, an executor takes a minute to come back.
LIMIT_SECONDS = 240
patient = pytest.mark.timeout(LIMIT_SECONDS + 20, func_only=True)


@pytest.fixture(scope="module")
def spark(spark_cluster):
    with spark_cluster.session() as session:
        yield session


@pytest.fixture
def mark():
    """A mark in the environment of all ranks of a test; none of them may be left."""
    mark = f"spark-{os.getpid()}-{time.monotonic_ns()}"
    entry = f"{MARK}={mark}".encode()

    def left():
        return [pid for pid, env in environments() if entry in env]

    yield mark
    until(lambda: not left(), 20, lambda: f"left behind: {left()}")


def place(word):
    import numpy as np

    import horovod.raw as hvd

    hvd.init()
    print(f"rank {hvd.rank()} of {hvd.size()} says {word}", flush=True)
    total = float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
    local = hvd.local_rank(), hvd.local_size(), hvd.cross_size()
    return hvd.rank(), total, local, os.environ["WORD"], os.getcwd()


def test_results_come_by_rank_and_output_appears_on_the_driver(spark, spark_cluster, mark):
    output = io.StringIO()
    env = {"WORD": "green", MARK: mark}
    results = horovod.spark.run(place, args=("hello",), num_proc=4, env=env, stdout=output)
    folders = {folder for *_, folder in results}
    assert [result[:4] for result in results] == [
        (rank, 4.0, (rank, 4, 1), "green") for rank in range(4)
    ]
    # Two executors, and ranks run in the directory of theirs.
    assert len(folders) == 2 and all(
        folder.startswith(str(spark_cluster.folder)) for folder in folders
    )
    assert sorted(output.getvalue().splitlines()) == [
        f"[{rank}]<stdout>:rank {rank} of 4 says hello" for rank in range(4)
    ]


def talk(folder):
    import horovod.raw as hvd

    hvd.init()
    print("first", flush=True)
    while not os.path.exists(f"{folder}/heard"):
        time.sleep(0.01)
    return "done"


def test_output_appears_while_the_ranks_run(spark, mark, tmp_path):
    class Listener(io.StringIO):
        def write(self, text):
            if "first" in text:
                (tmp_path / "heard").touch()
            return super().write(text)

    results = horovod.spark.run(
        talk, args=(str(tmp_path),), num_proc=2, env={MARK: mark}, stdout=Listener()
    )
    assert results == ["done", "done"]


def test_ranks_are_as_many_as_the_default_parallelism(spark):
    def size():
        import horovod.raw as hvd

        hvd.init()
        return hvd.size()

    assert horovod.spark.run(size) == [4] * 4


class Odd(Exception):
    def __init__(self, number):
        super().__init__(f"number {number} is odd")
        self.number = number


def test_an_exception_is_raised_as_itself_with_its_rank_and_host(spark, mark):
    def fail():
        import horovod.raw as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise Odd(7)
        hvd.barrier()
        hvd.barrier()

    errors = io.StringIO()
    with pytest.raises(Odd) as raised:
        horovod.spark.run(fail, num_proc=2, env={MARK: mark}, stderr=errors)
    assert isinstance(raised.value, RuntimeError) and raised.value.number == 7
    notes = "".join(raised.value.__notes__)
    assert notes.startswith("raised on rank 1 (") and "-task-" in notes
    assert "number 7 is odd" in errors.getvalue()


def test_a_function_that_cannot_be_pickled_is_refused_before_spark_starts_anything(spark):
    lock = threading.Lock()
    before = spark.sparkContext.statusTracker().getJobIdsForGroup(None)
    with pytest.raises(TypeError, match="cannot pickle"):
        horovod.spark.run(lambda: lock, num_proc=2)
    assert spark.sparkContext.statusTracker().getJobIdsForGroup(None) == before


def test_too_few_slots_are_named_before_and_after_the_wait(spark, monkeypatch):
    monkeypatch.setattr(stage, "_SAY_SECONDS", 0.0)
    said = io.StringIO()
    with pytest.raises(RuntimeError) as raised:
        horovod.spark.run(place, args=("",), num_proc=5, start_timeout=3, stderr=said)
    text = str(raised.value)
    assert text.startswith("Timed out waiting for Spark tasks to start.")
    assert "Spark could run 4 of 5 tasks now" in text and "ask for fewer ranks" in text
    assert said.getvalue() == "[ronde] Spark could run 4 of 5 tasks now; waiting for more\n"


def test_versions_of_ronde_that_differ_are_named(spark, monkeypatch):
    found = horovod.__version__
    monkeypatch.setattr(horovod, "__version__", "0.0.1")
    with pytest.raises(RuntimeError) as raised:
        horovod.spark.run(place, args=("",), num_proc=2)
    text = str(raised.value)
    assert text.startswith("Spark job has failed, see the error above.\nRuntimeError: Ronde is ")
    assert f"Ronde is {found} for " in text and "0.0.1 on the driver" in text
    assert "\tat org.apache" not in text


def test_versions_of_python_that_differ_are_named(spark, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "pythonVer", "3.4")
    with pytest.raises(RuntimeError, match="Spark job has failed") as raised:
        horovod.spark.run(place, args=("",), num_proc=2)
    assert "PYTHON_VERSION_MISMATCH" in str(raised.value) and "3.4" in str(raised.value)


def stay():
    import horovod.raw as hvd

    hvd.init()
    print("here", flush=True)
    hvd.barrier()
    while True:
        time.sleep(0.01)
        hvd.barrier()


@patient
def test_a_killed_executor_ends_the_job_and_both_sides_say_why(spark, mark):
    output, outcome = io.StringIO(), []

    def job():
        with pytest.raises(RuntimeError) as raised:
            horovod.spark.run(stay, num_proc=4, env={MARK: mark}, stdout=output)
        outcome.append(str(raised.value))

    thread = threading.Thread(target=job, daemon=True)
    thread.start()
    until(lambda: output.getvalue().count("here") == 4, LIMIT_SECONDS, output.getvalue)
    os.kill(executors(spark)[0], signal.SIGKILL)
    thread.join(LIMIT_SECONDS)
    assert outcome, "the job goes on without an executor"
    assert "executor" in outcome[0].lower() and "-task-" in outcome[0]


@patient
@pytest.mark.long
def test_the_next_job_has_the_executor_that_came_back(spark, mark):
    results = horovod.spark.run(
        place, args=("again",), num_proc=4, env={"WORD": "", MARK: mark}, stdout=io.StringIO()
    )
    assert [result[1] for result in results] == [4.0] * 4


@patient
@pytest.mark.long
def test_a_result_of_a_gigabyte_arrives_whole(spark, mark):
    def large():
        import numpy as np

        import horovod.raw as hvd

        hvd.init()
        return np.full(1 << 30, hvd.rank() + 1, dtype=np.uint8)

    first, second = horovod.spark.run(large, num_proc=2, env={MARK: mark})
    assert (first.nbytes, second.nbytes) == (1 << 30, 1 << 30)
    assert (first == 1).all() and (second == 2).all()
