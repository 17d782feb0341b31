"""The parts of `horovod.spark` that need no Spark."""

import subprocess
import sys

import cloudpickle
import pytest

import horovod
from horovod.common import environment
from horovod.runner.agents import Invitation
from horovod.spark import conf
from horovod.spark.agent_task import agent_task
from horovod.spark.capacity import is_dynamic, limit
from horovod.spark.stage import gist
from horovod.spark.task import get_available_devices


def test_importing_it_does_not_import_pyspark():
    code = "import sys, horovod.spark.conf, horovod.spark.task; assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)


ON_AN_EXECUTOR = """
import pickle, sys
sys.modules["horovod"] = None
task = pickle.loads(sys.stdin.buffer.read())
try:
    list(task(iter([])))
except RuntimeError as error:
    print(error)
"""


def test_an_executor_without_ronde_says_so():
    task = agent_task(Invitation(("10.0.0.1:4000",), "secret"), {})
    assert "secret" not in repr(task)
    said = subprocess.run(
        [sys.executable, "-c", ON_AN_EXECUTOR],
        input=cloudpickle.dumps(task),
        capture_output=True,
        check=True,
        timeout=50,
    ).stdout.decode()
    assert said.startswith(f"Ronde is not installed for {sys.executable} on host ")
    assert said.endswith(f"; install {horovod.__version__}\n")


def settings(**values):
    known = {f"spark.{name.replace('_', '.')}": value for name, value in values.items()}
    return lambda key, default: known.get(key, default)


@pytest.mark.parametrize(
    ("known", "tasks"),
    [
        ({"master": "local"}, 1),
        ({"master": "local[4]"}, 4),
        ({"master": "local[4, 3]", "task_cpus": "2"}, 2),
        ({"master": "local-cluster[2,3,1024]", "task_cpus": "2"}, 2),
        ({"master": "spark://a:7077"}, None),
        ({"master": "spark://a:7077", "cores_max": "9", "task_cpus": "2"}, 4),
        ({"master": "yarn"}, 2),
        ({"master": "yarn", "executor_instances": "3", "executor_cores": "4"}, 12),
        ({"master": "k8s://https://a", "executor_instances": "3", "executor_cores": "3",
          "task_cpus": "2"}, 3),
        ({"master": "yarn", "dynamicAllocation_enabled": "true"}, None),
        ({"master": "yarn", "dynamicAllocation_enabled": "true",
          "dynamicAllocation_maxExecutors": "5", "executor_cores": "2"}, 10),
        ({"master": "mesos://a"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_limit_of_an_application_follows_from_its_settings(known, tasks):
    found = limit(settings(**known))
    assert (None if found is None else found.tasks) == tasks


def test_more_ranks_than_that_are_refused_with_the_reason():
    most = limit(settings(master="spark://a:7077", cores_max="4", task_cpus="2"))
    assert most is not None
    most.refuse(2)
    with pytest.raises(ValueError) as raised:
        most.refuse(3)
    text = str(raised.value)
    assert "3 ranks need 3 tasks" in text and "never run more than 2" in text
    assert "spark.cores.max is 4 and spark.task.cpus is 2" in text


def test_a_local_master_allocates_nothing_dynamically():
    on = {"dynamicAllocation_enabled": "true"}
    assert is_dynamic(settings(master="yarn", **on))
    assert not is_dynamic(settings(master="local[2]", **on))
    assert not is_dynamic(settings(master="yarn"))


def test_the_constants_have_the_keys_of_today():
    names = [name for name in vars(conf) if name.startswith("SPARK_CONF_")]
    pairs = {name: getattr(conf, name) for name in names if isinstance(getattr(conf, name), tuple)}
    assert len(pairs) == 17
    assert {key for key, _ in pairs.values()} == set(conf.SPARK_CONF_DEFAULT_VALUES)
    assert pairs["SPARK_CONF_DONT_REUSE_NODE_FOR_SAME_TASK"] == (
        "spark.excludeOnFailure.task.maxTaskAttemptsPerNode",
        "1",
    )
    assert pairs["SPARK_CONF_REUSE_FAILING_NODE"][1] == "2147483646"


def test_old_keys_are_translated():
    old = [("spark.blacklist.enabled", "true"), ("spark.task.maxFailures", "9")]
    assert conf.current(old) == [
        ("spark.excludeOnFailure.enabled", "true"),
        ("spark.task.maxFailures", "9"),
    ]


def test_keys_that_spark_no_longer_reads_are_found():
    known = settings(blacklist_enabled="true", excludeOnFailure_enabled="true")
    assert conf.ignored(known, "4.1.0") == ["spark.blacklist.enabled"]
    assert conf.ignored(known, "4.0.2") == conf.ignored(settings(), "4.3.0") == []


def test_a_rank_sees_the_gpus_of_its_task(monkeypatch):
    assert environment.for_gpus_of_spark(["2", "3"], {}) == {
        "RONDE_SPARK_GPUS": "2,3",
        "CUDA_VISIBLE_DEVICES": "2,3",
    }
    choose = {"HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX": "1"}
    assert environment.for_gpus_of_spark(["2"], choose) == {"RONDE_SPARK_GPUS": "2"}
    assert get_available_devices() == []
    monkeypatch.setenv("RONDE_SPARK_GPUS", "2,3")
    assert get_available_devices() == ["2", "3"]


CLASSIC = """An error occurred while calling o56.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 2 failed.
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "agent_task.py", line 56, in task
    offer_slot(addresses, key, more)
RuntimeError: the agent failed with code 2:
error: no job accepted this agent

hint: look there
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1097)
"""
LOST = """An error occurred while calling o56.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: a barrier task failed.
ExecutorLostFailure (executor 1 exited) Reason: Command exited with code 137
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:4568)
Caused by: java.lang.Exception
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            CLASSIC,
            "RuntimeError: the agent failed with code 2:\n"
            "error: no job accepted this agent\nhint: look there",
        ),
        (
            LOST,
            "Job aborted due to stage failure: a barrier task failed.\n"
            "ExecutorLostFailure (executor 1 exited) Reason: Command exited with code 137",
        ),
        ("plain words", "plain words"),
        ("", ""),
    ],
)
def test_the_gist_of_an_exception_of_spark_has_no_stack_traces(text, words):
    assert gist(text) == words
