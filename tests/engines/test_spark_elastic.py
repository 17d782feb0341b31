"""`horovod.spark.run_elastic` on a standalone cluster: executors die and come back."""

import io
import os
import signal
import threading
import time

import pytest
from jobs import MARK, environments, until
from spark_cluster import executors

import horovod.spark
from horovod.spark import conf


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
    """A `run_elastic` in a thread; its output, and what it returned or raised."""

    def __init__(self, function, *args, **settings):
        self.output = io.StringIO()
        self.outcome = None
        self._thread = threading.Thread(target=self._run, args=(function, args, settings))
        self._thread.start()

    def _run(self, function, args, settings):
        streams = {"stdout": self.output, "stderr": self.output}
        try:
            self.outcome = horovod.spark.run_elastic(function, args, **streams, **settings)
        except Exception as error:
            self.outcome = error

    def hear(self, *words):
        """Waits until all these words are in the output."""

        def heard():
            assert self.outcome is None, f"{self.outcome!r}\n{self.output.getvalue()}"
            return all(word in self.output.getvalue() for word in words)

        until(heard, 55, self.output.getvalue)

    def result(self):
        self._thread.join(50)
        assert not self._thread.is_alive(), self.output.getvalue()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


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


def test_a_killed_executor_comes_back_with_new_ranks_and_the_survivors_go_on(spark, mark, tmp_path):
    job = Job(train, str(tmp_path), num_proc=4, min_num_proc=2, env={MARK: mark})
    job.hear("size 4 at rank 3")
    os.kill(executors(spark)[0], signal.SIGKILL)
    job.hear("size 2 at rank 1", "world 3 is formed: 4 ranks")
    (tmp_path / "end").touch()
    results = job.result()
    assert [(rank, size) for rank, size, _ in results] == [(0, 4), (1, 4)], job.output.getvalue()
    assert len({step for *_, step in results}) == 1


def test_a_killed_rank_is_started_again_in_its_task(spark, mark, tmp_path):
    job = Job(train, str(tmp_path), num_proc=2, min_num_proc=1, max_num_proc=2, env={MARK: mark})
    job.hear("size 2 at rank 1")
    entry = f"{MARK}={mark}".encode()
    ranks = [pid for pid, env in environments() if entry in env and b"HOROVOD_RANK=1" in env]
    os.kill(ranks[0], signal.SIGKILL)
    job.hear("size 1 at rank 0", "world 3 is formed: 2 ranks")
    (tmp_path / "end").touch()
    assert len(job.result()) == 1


def test_a_job_may_want_more_ranks_than_there_are_slots(spark, mark, tmp_path):
    (tmp_path / "end").touch()
    job = Job(train, str(tmp_path), num_proc=3, min_num_proc=3, max_num_proc=9, env={MARK: mark})
    sizes = [size for _, size, _ in job.result()]
    assert len(sizes) == 3 and set(sizes) <= {3, 4}


def test_the_reset_limit_ends_the_job(spark, mark, tmp_path):
    job = Job(train, str(tmp_path), num_proc=2, min_num_proc=1, reset_limit=0, env={MARK: mark})
    job.hear("size 2 at rank 1")
    entry = f"{MARK}={mark}".encode()
    ranks = [pid for pid, env in environments() if entry in env and b"HOROVOD_RANK=1" in env]
    os.kill(ranks[0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="number of resets during elastic job exceeded limit: 0"):
        job.result()
