"""Jobs of engines: agents that a program starts, and ranks that meet by a library call."""

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from jobs import environments, until

from horovod.runner.agents import Agent, AgentJob, Invitation

MARK = "RONDE_TEST_MARK"


@pytest.fixture
def mark():
    """A mark in the environment of all ranks of a test; none of them may be left."""
    mark = f"agents-{os.getpid()}-{time.monotonic_ns()}"
    yield mark
    until(lambda: not marked(mark), 10, lambda: f"left behind: {marked(mark)}")


def marked(mark):
    entry = f"{MARK}={mark}".encode()
    return [pid for pid, env in environments() if entry in env]


def ranks(mark):
    """The ranks alone: agents have the mark from their start."""
    entry = f"{MARK}={mark}".encode()
    launched = ((pid, b"\0".join(env)) for pid, env in environments() if entry in env)
    return [pid for pid, env in launched if b"\0HOROVOD_RANK=" in env]


def place():
    import numpy as np

    import horovod.raw as hvd

    hvd.init()
    print(f"rank {hvd.rank()} says {os.environ['WORD']}", flush=True)
    total = hvd.allreduce(np.ones(1), op=hvd.Sum)[0]
    own = {name: os.environ.get(name) for name in ("WORD", "OF_THE_CALLER")}
    local = (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())
    return local, float(total), own, os.getcwd(), sys.executable


def test_agents_of_one_machine_are_numbered_together_and_ranks_have_their_environment(
    mark, tmp_path, monkeypatch
):
    monkeypatch.setenv("OF_THE_CALLER", "secret")
    output = io.StringIO()
    job = AgentJob(place, agents=4, stdout=output)
    invitation = job.start()
    assert invitation.key not in repr(invitation)
    monkeypatch.delenv("OF_THE_CALLER")
    monkeypatch.chdir(tmp_path)
    agents = []
    for machine, word in (("a", "one"), ("b", "two"), ("a", "three"), ("b", "four")):
        agents.append(Agent(invitation, shared_host=machine, env={"WORD": word, MARK: mark}))
    results = job.wait()
    for agent in agents:
        agent.wait(30)
    assert sorted(local for local, *_ in results[:2]) == [(0, 2, 0, 2), (1, 2, 0, 2)]
    assert sorted(local for local, *_ in results[2:]) == [(0, 2, 1, 2), (1, 2, 1, 2)]
    words = [own["WORD"] for _, _, own, _, _ in results]
    assert {frozenset(words[:2]), frozenset(words[2:])} == {
        frozenset({"one", "three"}),
        frozenset({"two", "four"}),
    }
    for _, total, own, folder, python in results:
        assert (total, own["OF_THE_CALLER"]) == (4.0, None)
        assert (folder, python) == (str(tmp_path), sys.executable)
    assert sorted(output.getvalue().splitlines()) == sorted(
        f"[{rank}]<stdout>:rank {rank} says {word}" for rank, word in enumerate(words)
    )


def stay():
    import numpy as np

    import horovod.raw as hvd

    hvd.init()
    while True:
        hvd.allreduce(np.ones(1))
        time.sleep(0.01)


def test_a_job_can_be_cancelled_before_and_after_its_agents_have_come(mark):
    for count in (0, 1):
        job = AgentJob(stay, agents=1, stderr=io.StringIO())
        invitation = job.start()
        agents = [Agent(invitation, env={MARK: mark}) for _ in range(count)]
        if agents:
            until(lambda: ranks(mark), 30, lambda: "no rank was started")
        error = ConnectionError("the engine has gone")
        timer = threading.Timer(0.1, job.cancel, [error])
        timer.start()
        with pytest.raises(ConnectionError) as raised:
            job.wait()
        assert raised.value is error
        for agent in agents:
            agent.wait(30)


def raises():
    raise KeyError("missing")


def test_a_failure_is_raised_as_itself(mark):
    job = AgentJob(raises, agents=1, stderr=io.StringIO())
    with Agent(job.start(), name="node-7", env={MARK: mark}), pytest.raises(KeyError) as raised:
        job.wait()
    assert "raised on rank 0 (node-7, slot 0)" in "\n".join(raised.value.__notes__)


def test_an_agent_without_a_job_says_so():
    job = AgentJob(place, agents=1, stderr=io.StringIO())
    invitation = job.start()
    threading.Timer(0.1, job.cancel, [InterruptedError()]).start()
    with pytest.raises(InterruptedError):
        job.wait()
    with pytest.raises(RuntimeError, match="no job accepted this agent within 1 s"):
        Agent(invitation, timeout=1).wait(50)


AGENT_OWNER = """
import sys, time
from horovod.runner.agents import Agent, Invitation
key, mark, *addresses = sys.argv[1:]
Agent(Invitation(tuple(addresses), key), env={"RONDE_TEST_MARK": mark})
time.sleep(600)
"""


def test_an_agent_and_its_ranks_end_with_the_process_that_started_it(mark):
    job = AgentJob(stay, agents=1, stderr=io.StringIO())
    invitation = job.start()
    words = [invitation.key, mark, *invitation.addresses]
    owner = subprocess.Popen([sys.executable, "-c", AGENT_OWNER, *words])
    try:
        until(lambda: ranks(mark), 50, lambda: "no rank was started")
    finally:
        owner.kill()
        owner.wait()
    with pytest.raises(RuntimeError):
        job.wait()
    until(lambda: not marked(mark), 20, lambda: f"left behind: {marked(mark)}")


JOB_OWNER = """
import sys, time
from horovod.runner.agents import AgentJob
def stay():
    import horovod.raw as hvd
    hvd.init()
    time.sleep(600)
job = AgentJob(stay, agents=1)
invitation = job.start()
print(invitation.key, *invitation.addresses, flush=True)
job.wait()
"""


def test_agents_end_when_the_process_that_started_the_job_is_killed(mark):
    owner = subprocess.Popen([sys.executable, "-c", JOB_OWNER], stdout=subprocess.PIPE, text=True)
    try:
        key, *addresses = owner.stdout.readline().split()
        agent = Agent(Invitation(tuple(addresses), key), env={MARK: mark})
        until(lambda: ranks(mark), 50, lambda: "no rank was started")
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
    agent.wait(30)


def meet(rank, size, texts, answers, host):
    import numpy as np

    import horovod
    import horovod.raw as hvd

    before = dict(os.environ)
    if rank == 0:
        invitation = horovod.open_rendezvous(size)
        for _ in range(size - 1):
            texts.put(invitation)
    else:
        invitation = texts.get(timeout=30)
    horovod.use_rendezvous(invitation, rank, size, host)
    sums = []
    for _ in range(2):
        hvd.init()
        sums.append(float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0]))
        local = (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())
        hvd.shutdown()
    hvd.init(rank=rank, size=size, invitation=invitation, host="all")
    shared = hvd.local_size()
    hvd.shutdown()
    names = {name for name in os.environ if os.environ[name] != before.get(name)}
    answers.put((rank, sums, local, shared, sorted(n for n in names if "NCCL" not in n)))


def test_processes_meet_by_a_library_call_without_the_environment():
    context = multiprocessing.get_context("spawn")
    texts, answers = context.Queue(), context.Queue()
    hosts = ["a", "a", "b"]
    ranks = [
        context.Process(target=meet, args=(rank, 3, texts, answers, host))
        for rank, host in enumerate(hosts)
    ]
    for rank in ranks:
        rank.start()
    try:
        found = sorted(answers.get(timeout=50) for _ in ranks)
    finally:
        for rank in ranks:
            rank.join(10)
            rank.kill()
    assert found == [
        (0, [3.0, 3.0], (0, 2, 0, 2), 3, []),
        (1, [3.0, 3.0], (1, 2, 0, 1), 3, []),
        (2, [3.0, 3.0], (0, 1, 1, 2), 3, []),
    ]
