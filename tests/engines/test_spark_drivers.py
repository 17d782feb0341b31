"""`horovod.spark` in drivers of their own: over Spark Connect, killed, with other settings."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from jobs import MARK, environments, until
from spark_cluster import SparkCluster

# The session is `spark`; the results of a test are printed as one line of JSON.
CLASSIC = """
import json, os, sys, time
from pyspark.sql import SparkSession
import horovod.spark
url, mark, *words = sys.argv[1:]
builder = SparkSession.builder.master(url).config("spark.ui.enabled", "false")
builder = builder.config("spark.executor.memory", "1g").config("spark.driver.host", "127.0.0.1")
for setting in words:
    builder = builder.config(*setting.split("=", 1))
env = {"RONDE_TEST_MARK": mark}

def place():
    import horovod.raw as hvd
    hvd.init()
    print("rank", hvd.rank(), flush=True)
    return hvd.rank(), hvd.size(), os.environ.get("CUDA_VISIBLE_DEVICES")

def stay():
    import numpy
    import horovod.raw as hvd
    hvd.init()
    hvd.barrier()
    print("all here", flush=True)
    while True:
        hvd.barrier()
        time.sleep(0.01)

spark = builder.getOrCreate()
spark.range(0, 4, 1, 4).collect()
print("ready", flush=True)
"""
# A busy machine takes minutes to start a driver and its executors.
LIMIT_SECONDS = 240
patient = pytest.mark.timeout(LIMIT_SECONDS + 20, func_only=True)


class Driver:
    """A driver as a process of its own, on this cluster."""

    def __init__(self, cluster, folder, code, settings=()):
        self.mark = f"spark-{os.getpid()}-{time.monotonic_ns()}"
        self._log = folder / "driver.txt"
        words = [cluster.url, self.mark, *settings]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CLASSIC + code, *words],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
                start_new_session=True,
            )

    def output(self):
        return self._log.read_text(errors="replace")

    def hear(self, words, limit=LIMIT_SECONDS):
        def heard():
            assert self.process.poll() is None, self.output()
            return words in self.output()

        until(heard, limit, self.output)

    def result(self, limit=LIMIT_SECONDS):
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running:\n{self.output()}") from None
        assert code == 0, self.output()
        lines = [line for line in self.output().splitlines() if line.startswith("JSON")]
        return json.loads(lines[-1].removeprefix("JSON"))

    def left(self):
        entry = f"{MARK}={self.mark}".encode()
        return [pid for pid, env in environments() if entry in env]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        until(lambda: not self.left(), 30, lambda: f"left behind: {self.left()}\n{self.output()}")


@pytest.fixture
def driver(spark_cluster, tmp_path, request):
    """A driver whose executors have started; its code, and settings as `key=value`."""
    code, *settings = request.param
    with Driver(spark_cluster, tmp_path, code, settings) as driver:
        driver.hear("ready")
        yield driver


@pytest.fixture
def gpu_driver(tmp_path):
    """The same on a cluster with two GPUs."""
    settings = ["spark.executor.resource.gpu.amount=2", "spark.task.resource.gpu.amount=1"]
    with (
        SparkCluster(tmp_path, workers=1, gpus=["4", "6"]) as cluster,
        Driver(cluster, tmp_path, GPUS, settings) as driver,
    ):
        driver.hear("ready")
        yield driver


def driven(code, *settings):
    return pytest.mark.parametrize("driver", [(code, *settings)], ids=["driver"], indirect=True)


CONNECT = """
assert "connect" in type(spark).__module__
results = horovod.spark.run(place, env=env)
said = ""
try:
    horovod.spark.run(place, num_proc=5, start_timeout=2)
except RuntimeError as error:
    said = str(error)
elastic = horovod.spark.run_elastic(place, num_proc=2, max_num_proc=6, env=env)
print("JSON", json.dumps([results, said, len(elastic)]), flush=True)
spark.stop()
"""


@patient
@driven(CONNECT, "spark.api.mode=connect")
def test_jobs_run_over_spark_connect(driver):
    results, said, elastic = driver.result()
    assert results == [[rank, 4, None] for rank in range(4)]
    assert "[3]<stdout>:rank 3" in driver.output()
    assert said.startswith("Timed out waiting for Spark tasks to start."), said
    assert elastic == 2


KILLED = "horovod.spark.run(stay, num_proc=4, env=env)"


@patient
@driven(KILLED)
def test_nothing_is_left_of_a_killed_driver(driver):
    driver.hear("[3]<stdout>:all here")
    driver.process.kill()
    driver.process.wait()
    until(lambda: not driver.left(), LIMIT_SECONDS, lambda: f"left behind: {driver.left()}")


REFUSED = """
said = []
for count in (3, 2):
    try:
        said.append(horovod.spark.run(place, num_proc=count))
    except ValueError as error:
        said.append(str(error))
print("JSON", json.dumps(said), flush=True)
"""


@patient
@pytest.mark.long
@driven(REFUSED, "spark.cores.max=2")
def test_more_ranks_than_the_application_may_have_cores_are_refused_at_once(driver):
    refused, results = driver.result()
    assert "never run more than 2: spark.cores.max is 2" in refused
    assert [rank for rank, *_ in results] == [0, 1]


DYNAMIC = """
fixed = horovod.spark.run(place, num_proc=4, env=env)
elastic = horovod.spark.run_elastic(place, num_proc=2, max_num_proc=4, env=env)
print("JSON", json.dumps([fixed, elastic]), flush=True)
"""


@patient
@pytest.mark.long
@driven(
    DYNAMIC,
    "spark.dynamicAllocation.enabled=true",
    "spark.dynamicAllocation.shuffleTracking.enabled=true",
    "spark.executor.cores=1",
)
def test_jobs_run_under_dynamic_allocation(driver):
    fixed, elastic = driver.result()
    assert [rank for rank, *_ in fixed] == [0, 1, 2, 3]
    assert len(elastic) == 2


GPUS = """
from horovod.spark.task import get_available_devices
def gpus():
    return os.environ["CUDA_VISIBLE_DEVICES"], get_available_devices(), place()[0]
def all_of_them():
    return os.environ.get("CUDA_VISIBLE_DEVICES"), get_available_devices(), place()[0]
whole = {**env, "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX": "1"}
results = [horovod.spark.run(gpus, env=env), horovod.spark.run(all_of_them, env=whole)]
print("JSON", json.dumps(results), flush=True)
"""


@patient
@pytest.mark.long
def test_ranks_see_the_gpus_that_spark_assigned_to_their_tasks(gpu_driver):
    own, whole = gpu_driver.result()
    assert sorted(visible for visible, *_ in own) == ["4", "6"]
    assert all(assigned == [visible] for visible, assigned, _ in own)
    assert [visible for visible, *_ in whole] == [None, None]
    assert sorted(assigned[0] for _, assigned, _ in whole) == ["4", "6"]
