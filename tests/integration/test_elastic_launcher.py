"""Elastic `horovodrun` jobs without a framework, with hosts that are really added and lost."""

import os
import signal
import time

import pytest
from elastic_jobs import Job
from lab import Lab, why_not

pytestmark = pytest.mark.timeout(60)


def test_training_survives_losing_ranks_hosts_and_the_host_of_rank_0(tmp_path):
    options = ["-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "1", "1"]
    with Job(tmp_path, "localhost:2\n", *options) as job:
        first = job.world([0, 1])
        os.kill(first[1]["pid"], signal.SIGKILL)
        alone = job.world([0])
        assert alone[0]["pid"] == first[0]["pid"], "survivors are not restarted"
        # After the host's cooldown, its free slot is used again.
        again = job.world([0, 2])
        assert again[0]["step"] == again[1]["step"] > alone[0]["step"]
        job.list("localhost:2\n127.0.0.2:1\n")
        three = job.world([0, 2, 3])
        ranks = job.status()["ranks"]
        assert [rank["host"] for rank in ranks] == ["localhost", "localhost", "127.0.0.2"]
        assert [rank["pid"] for rank in ranks] == [event["pid"] for event in three]
        os.kill(job.agents()[0], signal.SIGKILL)
        last = job.world([3])
        assert last[0]["pid"] == three[2]["pid"] and last[0]["step"] >= three[0]["step"]
        assert job.finish() == 0, job.output()
        output = job.output()
        for text in (
            "[ronde] lost rank 1 (localhost, slot 1): was killed by signal 9 (SIGKILL)\n",
            "[ronde] recovered with 1 rank: rejoined after ",
            "[ronde] host `localhost` may be used again\n",
            "[ronde] found host `127.0.0.2` with 1 slot\n",
            "[ronde] lost host `localhost`: its agent was killed by signal 9 (SIGKILL)",
        ):
            assert text in output, output


def test_removing_a_host_or_stopping_its_agent_loses_no_step(tmp_path):
    hosts = "localhost:1\n127.0.0.2:1\n127.0.0.3:1\n"
    with Job(tmp_path, hosts, "-np", "3", "--min-np", "1") as job:
        job.world([0, 1, 2])
        job.list("localhost:1\n127.0.0.3:1\n")
        job.world([0, 2])
        os.kill(job.agents()[-1], signal.SIGTERM)
        job.world([0])
        assert job.finish() == 0, job.output()
        output = job.output()
        assert "lost" not in output, output
        for host in ("127.0.0.2", "127.0.0.3"):
            assert f"{host}[0] has been removed from elastic job: its host is no longer" in output
        assert "the agent on host `127.0.0.3` was told to stop" in output


def test_a_stopped_rank_is_lost_and_the_others_continue(tmp_path):
    options = ["-np", "2", "--min-np", "1"]
    with Job(tmp_path, "localhost:2\n", *options, RONDE_ELASTIC_STOPPED_SECONDS="1") as job:
        world = job.world([0, 1])
        begin = time.monotonic()
        os.kill(world[0]["pid"], signal.SIGSTOP)
        job.world([1])
        assert time.monotonic() - begin < 10
        assert job.finish() == 0, job.output()
        stopped = "rank 0 (localhost, slot 0): was stopped (for example by SIGSTOP) for 1 s"
        assert stopped in job.output()


NO_LAB = why_not()


@pytest.mark.skipif(NO_LAB is not None, reason=str(NO_LAB))
def test_an_unplugged_host_is_lost_and_another_replaces_it(tmp_path):
    with Lab(tmp_path, 3, network="10.81.0") as lab:
        first, second, _ = lab.hosts
        options = ["-np", "2", "--min-np", "1", "-p", str(second.port)]
        prefix = first.prefix(tmp_path)
        with Job(tmp_path, "node-a:1\nnode-b:1\n", *options, prefix=prefix) as job:
            before = job.world([0, 1])
            begin = time.monotonic()
            second.unplug()
            alone = job.world([0])
            assert time.monotonic() - begin < 5
            assert alone[0]["pid"] == before[0]["pid"]
            job.list("node-a:1\nnode-b:1\nnode-c:1\n")
            job.world([0, 2])
            assert job.finish() == 0, job.output()
            output = job.output()
            assert "[ronde] lost host `node-b`: it stopped responding" in output
            assert "[ronde] recovered with 1 rank: rejoined after " in output
