"""The commands of the rendered Helm chart, run in pods that are namespaces of a lab."""

import json

import pytest
from charts import rendered
from elastic_jobs import PROGRAM
from lab import why_not
from pods import Cluster

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

MPI_ARGS = (
    "--mca orte_keep_fqdn_hostnames t --allow-run-as-root --display-map --tag-output"
    " --timestamp-output"
)
# A command line as people type it, but for the program.
LINE = (
    "horovodrun -n {count} --hostfile /horovod/generated/hostfile --mpi-args "
    f"\"{MPI_ARGS}\" bash -c 'python /data/work.py'"
)
WORK = """
import os, socket
import horovod.raw as hvd
import numpy

hvd.init()
total = hvd.allreduce(numpy.arange(1000.0) * (hvd.rank() + 1), op=hvd.Sum)
factor = hvd.size() * (hvd.size() + 1) // 2
assert (total == numpy.arange(1000.0) * factor).all()
where = os.environ.get("WHERE", "driver")
print(f"rank {hvd.rank()} of {hvd.size()} on {socket.gethostname()} in {where}", flush=True)
assert "RONDE_AGENT_KEY" not in os.environ
"""


def values(**more):
    found = {
        "datasetPvc": {"enabled": True},
        "worker": {"number": 2, "env": {"WHERE": 'a "worker"'}},
    }
    for key, value in more.items():
        found[key] = {**found.get(key, {}), **value}
    return found


@pytest.fixture(name="cluster")
def _cluster(tmp_path):
    """Makes clusters for values; all pods mount the folder with the program as their claim."""
    made = []

    def make(values):
        cluster = Cluster(tmp_path, rendered(values=values)).__enter__()
        made.append(cluster)
        (cluster.shared / "work.py").write_text(WORK)
        return cluster

    yield make
    for cluster in made:
        cluster.__exit__()


def lines(pod):
    return sorted(line for line in pod.output().splitlines() if "rank " in line)


def test_with_ssh_the_hostfile_works_as_in_horovods_chart(cluster):
    args = LINE.format(count=3)
    cluster = cluster(values(ssh={"useSecret": True, "port": 12345}, driver={"args": [args]}))
    # The driver is early, and waits for the workers by name.
    driver = cluster.start("Job", "ddp-ronde-driver")
    cluster.until(
        lambda: "waiting for ddp-ronde-0.ddp-ronde ddp-ronde-1.ddp-ronde" in driver.output()
    )
    workers = [cluster.start("StatefulSet", "ddp-ronde", index) for index in range(2)]
    assert driver.wait() == 0, cluster.output()
    assert lines(driver) == [
        "[0]<stdout>:rank 0 of 3 on ddp-ronde-driver in driver",
        '[1]<stdout>:rank 1 of 3 on ddp-ronde-0 in a "worker"',
        '[2]<stdout>:rank 2 of 3 on ddp-ronde-1 in a "worker"',
    ], cluster.output()
    listed = workers[0].run("/horovod/generated/discoverHosts.sh").stdout.split()
    assert listed == [f"{it.address}:1" for it in workers] + ["ddp-ronde-driver:1"]


def test_a_command_runs_on_all_hosts_of_the_hostfile_and_the_workers_end_with_it(cluster):
    cluster = cluster(values(driver={"args": [LINE.format(count=3)]}))
    # The driver is early, and waits for the workers by name.
    driver = cluster.start("Job", "ddp-ronde-driver")
    cluster.until(
        lambda: "waiting for ddp-ronde-0.ddp-ronde ddp-ronde-1.ddp-ronde" in driver.output()
    )
    workers = [cluster.start("Job", "ddp-ronde", index) for index in (1, 0)]
    assert driver.wait() == 0, cluster.output()
    assert lines(driver) == [
        "[0]<stdout>:rank 0 of 3 on ddp-ronde-driver in driver",
        '[1]<stdout>:rank 1 of 3 on ddp-ronde-0 in a "worker"',
        '[2]<stdout>:rank 2 of 3 on ddp-ronde-1 in a "worker"',
    ], cluster.output()
    assert [worker.wait() for worker in workers] == [0, 0], cluster.output()


def test_a_failed_command_is_run_again_and_then_ends_the_workers(cluster):
    args = "horovodrun -np 1 -H ddp-ronde-0.ddp-ronde sh -c 'echo tried; exit 7'"
    cluster = cluster(values(driver={"args": args, "retries": 1}))
    workers = [cluster.start("Job", "ddp-ronde", index) for index in (0, 1)]
    driver = cluster.start("Job", "ddp-ronde-driver")
    assert driver.wait() == 7, cluster.output()
    assert driver.output().count("tried\n") == 2
    assert [worker.wait() for worker in workers] == [0, 0], cluster.output()


def test_a_shell_in_the_driver_starts_jobs(cluster):
    cluster = cluster(values())
    driver = cluster.start("Job", "ddp-ronde-driver")
    workers = [cluster.start("Job", "ddp-ronde", index) for index in (0, 1)]
    found = cluster.until(lambda: discovered(driver, 3))
    assert found == ["ddp-ronde-0.ddp-ronde:1", "ddp-ronde-1.ddp-ronde:1", "ddp-ronde-driver:1"]
    for _ in range(2):
        result = driver.run(LINE.format(count=3))
        assert result.returncode == 0, result.stderr + cluster.output()
        assert result.stdout.count("rank ") == 3
    # Ranks can write where they start, as programs do with their checkpoints.
    result = driver.run(LINE.format(count=3).replace("python /data/work.py", "touch checkpoint"))
    assert result.returncode == 0, result.stderr
    # When the pods are stopped, none of them counts as done.
    for pod in (driver, *workers):
        pod.terminate()
    assert [pod.wait() for pod in (driver, *workers)] == [143, 143, 143], cluster.output()


def discovered(driver, count):
    found = driver.run("/horovod/generated/discoverHosts.sh").stdout.split()
    return found if len(found) == count else None


def events(cluster, name):
    file = cluster.shared / "events.jsonl"
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [event for event in found if event["event"] == name]


def worlds(cluster):
    members = [it["members"] for it in events(cluster, "world_formed")]
    return [sorted(one["host"] for one in world) for world in members]


def test_an_elastic_job_grows_and_a_stopped_worker_leaves_it_in_order(cluster):
    args = (
        "horovodrun -np 2 --min-np 1 --host-discovery-script /horovod/generated/discoverHosts.sh"
        " --event-log /data/events.jsonl python /data/elastic.py"
    )
    driver = {"args": args, "slots": 0, "env": {"SAY_FOLDER": "/data"}}
    cluster = cluster(values(driver=driver))
    (cluster.shared / "elastic.py").write_text(PROGRAM)
    names = [f"ddp-ronde-{index}.ddp-ronde" for index in range(3)]
    driver = cluster.start("Job", "ddp-ronde-driver")
    workers = [cluster.start("Job", "ddp-ronde", index) for index in range(2)]
    cluster.until(lambda: worlds(cluster)[-1:] == [names[:2]])
    workers.append(cluster.start("Job", "ddp-ronde", 2))
    cluster.until(lambda: worlds(cluster)[-1:] == [names])
    # A node is drained. The Job must not count this pod as done.
    workers[1].terminate()
    cluster.until(lambda: worlds(cluster)[-1:] == [[names[0], names[2]]])
    assert "its ranks have 110 s to leave at a commit" in driver.output()
    assert workers[1].wait() == 143, cluster.output()
    assert events(cluster, "worker_lost") == []
    # Its pod starts again elsewhere, with another address under the same name.
    workers[1] = cluster.start("Job", "ddp-ronde", 1)
    cluster.until(lambda: worlds(cluster)[-1:] == [names])
    (cluster.shared / "over").touch()
    assert driver.wait() == 0, cluster.output()
    # The third worker is told, too, although the driver's hostfile is older than it.
    assert [worker.wait() for worker in workers] == [0, 0, 0], cluster.output()


def test_a_driver_that_is_stopped_ends_its_command_and_the_workers_serve_the_next_one(cluster):
    command = "horovodrun -np 1 -H ddp-ronde-0.ddp-ronde sh -c 'echo started; exec sleep 1000'"
    cluster = cluster(values(driver={"args": command}, worker={"number": 1}))
    worker = cluster.start("Job", "ddp-ronde", 0)
    for _ in range(2):
        driver = cluster.start("Job", "ddp-ronde-driver")
        cluster.until(lambda driver=driver: "started" in driver.output())
        driver.terminate()
        assert driver.wait() == 143, cluster.output()
        assert "stopped by signal 15 (SIGTERM)" in driver.output()
    assert not worker.gone


def test_workers_end_some_time_after_a_driver_that_was_killed(cluster):
    cluster = cluster(values(worker={"number": 1, "leaveAfterSeconds": 10}))
    driver = cluster.start("Job", "ddp-ronde-driver")
    worker = cluster.start("Job", "ddp-ronde", 0)
    cluster.until(lambda: discovered(driver, 2))
    # Only a worker that has seen the driver misses it; between two looks it sleeps.
    cluster.until(lambda: worker.runs("sleep 10"))
    driver.stop()
    driver.code = 137
    cluster.publish()
    assert worker.wait() == 0, cluster.output()
    assert "the driver has been gone for 10 seconds" in worker.output()
