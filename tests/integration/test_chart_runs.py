"""The commands of the rendered Helm chart, run in pods that are namespaces of a lab."""

import pytest
from charts import rendered
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
    found = {"datasetPvc": {"enabled": True}, "worker": {"number": 2, "env": {"WHERE": "worker"}}}
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
        "[1]<stdout>:rank 1 of 3 on ddp-ronde-0 in driver",
        "[2]<stdout>:rank 2 of 3 on ddp-ronde-1 in driver",
    ], cluster.output()
    listed = workers[0].run("/horovod/generated/discoverHosts.sh").stdout.split()
    assert listed == [f"{it.address}:1" for it in workers] + ["ddp-ronde-driver:1"]
