"""`horovod.spark.run_elastic` on a standalone cluster: executors die and come back."""

import io
import os
import signal
import threading
import time

import pytest
from jobs import MARK, environments, until
from spark_cluster import kill_container

import horovod.spark
from horovod.spark import conf

# On a busy machine, an executor takes a minute to come back.
LIMIT_SECONDS = 240
patient = pytest.mark.timeout(LIMIT_SECONDS + 20, func_only=True)


@pytest.fixture(scope="module")
def spark(spark_cluster):
    key, value = conf.SPARK_CONF_ALWAYS_RESTART_FAILED_TASK
    with spark_cluster.session(**{key.removeprefix("spark."): value}) as session:
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


class Job:
    """Training by `run_elastic` in a thread, until `end`; its output, and how it ended."""

    def __init__(self, folder, **settings):
        self.output = io.StringIO()
        self._folder, self._outcome = folder, None
        self._thread = threading.Thread(target=self._run, args=(settings,))
        self._thread.start()

    def _run(self, settings):
        streams = {"stdout": self.output, "stderr": self.output}
        try:
            self._outcome = horovod.spark.run_elastic(
                train, (str(self._folder),), **streams, **settings
            )
        except Exception as error:
            self._outcome = error

    def hear(self, *words):
        """Waits until all these words are in the output."""

        def heard():
            assert self._outcome is None, f"{self._outcome!r}\n{self.output.getvalue()}"
            return all(word in self.output.getvalue() for word in words)

        until(heard, LIMIT_SECONDS, lambda: f"no {words}:\n{self.output.getvalue()}")

    def end(self):
        """Lets the ranks return; their results."""
        (self._folder / "end").touch()
        return self.outcome()

    def outcome(self):
        """What the job returns; raises what it raises."""
        self._thread.join(LIMIT_SECONDS)
        assert not self._thread.is_alive(), self.output.getvalue()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # The next test needs the slots.
        (self._folder / "end").touch()
        self._thread.join(LIMIT_SECONDS)


def train(folder):
    """Counts steps in every rank until there is a file, and says in which world they were done."""
    import numpy as np

    import horovod.raw as hvd
    from horovod.common.elastic import ObjectState, rejoin, run_fn
    from horovod.common.objects import broadcast_object

    hvd.init()
    state = ObjectState(broadcast_object, hvd.rank, step=0)

    def steps(state):
        print(f"size {hvd.size()} at rank {hvd.rank()}", flush=True)
        while True:
            ended = hvd.allreduce(
                np.array([os.path.exists(f"{folder}/end")], dtype=np.float32), op=hvd.Max
            )
            if ended[0]:
                return hvd.rank(), hvd.size(), state.step
            state.step += 1
            state.commit()
            time.sleep(0.01)

    return run_fn(steps, rejoin)(state)


def kill_rank(number, mark):
    ranks = [env for env in environments() if f"{MARK}={mark}".encode() in env[1]]
    (pid,) = [pid for pid, env in ranks if f"HOROVOD_RANK={number}".encode() in env]
    os.kill(pid, signal.SIGKILL)


@patient
def test_an_executor_dies_and_comes_back_while_the_others_go_on(spark, mark, tmp_path):
    with Job(tmp_path, num_proc=4, min_num_proc=2, env={MARK: mark}) as job:
        job.hear("size 4 at rank 3")
        kill_container(spark)
        # Spark may restart the two tasks one after the other.
        job.hear("lost ", "size 2 at rank 1")
        until(
            lambda: job.output.getvalue().count("size 4 at rank 3") > 1,
            LIMIT_SECONDS,
            job.output.getvalue,
        )
        results = job.end()
    assert [(rank, size) for rank, size, _ in results] == [(0, 4), (1, 4)], job.output.getvalue()
    assert len({step for *_, step in results}) == 1


@patient
def test_a_killed_rank_is_started_again_in_its_task(spark, mark, tmp_path):
    with Job(tmp_path, num_proc=2, min_num_proc=1, max_num_proc=2, env={MARK: mark}) as job:
        job.hear("size 2 at rank 1")
        kill_rank(1, mark)
        job.hear("size 1 at rank 0", "world 3 is formed: 2 ranks")
        assert len(job.end()) == 1


@patient
def test_a_job_may_want_more_ranks_than_there_are_slots(spark, mark, tmp_path):
    settings = {"num_proc": 3, "min_num_proc": 3, "max_num_proc": 9}
    with Job(tmp_path, **settings, env={MARK: mark}) as job:
        job.hear("size 4 at rank 3")
        sizes = [size for _, size, _ in job.end()]
    assert sizes == [4, 4, 4]


@patient
def test_the_reset_limit_ends_the_job(spark, mark, tmp_path):
    with Job(tmp_path, num_proc=2, min_num_proc=1, reset_limit=0, env={MARK: mark}) as job:
        job.hear("size 2 at rank 1")
        kill_rank(1, mark)
        with pytest.raises(RuntimeError, match="resets during elastic job exceeded limit: 0"):
            job.outcome()


@patient
def test_tasks_that_do_not_start_end_the_job(spark, mark, tmp_path):
    job = Job(tmp_path, num_proc=5, start_timeout=2, env={MARK: mark})
    with job, pytest.raises(RuntimeError) as raised:
        job.outcome()
    text = str(raised.value)
    assert text.startswith("Timed out waiting for Spark tasks to start.\nno rank after 2 s\n")
    assert "Spark could run" in text
