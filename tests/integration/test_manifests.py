"""The manifests of deploy/kubernetes: their form, and what they run."""

import operators
import pytest
import yaml
from charts import ROOT, check, one, restricted
from elastic_jobs import PROGRAM
from lab import why_not
from pods import Cluster

FOLDER = ROOT / "deploy" / "kubernetes"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
REASON = why_not()
needs_lab = pytest.mark.skipif(REASON is not None, reason=str(REASON))

# The fields of custom resources that the manifests may use, by their place.
FIELDS = {
    "JobSet": {
        "spec": {"network", "successPolicy", "failurePolicy", "replicatedJobs"}
        | {"ttlSecondsAfterFinished", "suspend"},
        "spec.network": {"enableDNSHostnames", "subdomain", "publishNotReadyAddresses"},
        "spec.successPolicy": {"operator", "targetReplicatedJobs"},
        "spec.failurePolicy": {"maxRestarts", "rules", "restartStrategy"},
        "spec.replicatedJobs": {"name", "replicas", "template", "dependsOn", "groupName"},
    },
    "MPIJob": {
        "spec": {"slotsPerWorker", "runLauncherAsWorker", "runPolicy", "mpiReplicaSpecs"}
        | {"sshAuthMountPath", "launcherCreationPolicy", "mpiImplementation"},
        "spec.runPolicy": {"cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds"}
        | {"backoffLimit", "schedulingPolicy", "suspend", "managedBy"},
        "spec.mpiReplicaSpecs": {"Launcher", "Worker"},
        "spec.mpiReplicaSpecs.Launcher": {"replicas", "restartPolicy", "template"},
        "spec.mpiReplicaSpecs.Worker": {"replicas", "restartPolicy", "template"},
    },
    "TrainJob": {
        "spec": {"runtimeRef", "initializer", "trainer", "runtimePatches", "suspend"},
        "spec.runtimeRef": {"apiGroup", "kind", "name"},
        "spec.trainer": {"image", "command", "args", "env", "numNodes", "numProcPerNode"}
        | {"resourcesPerNode"},
    },
    "TrainingRuntime": {
        "spec": {"mlPolicy", "podGroupPolicy", "template"},
        "spec.mlPolicy": {"numNodes", "mpi", "torch"},
        "spec.mlPolicy.mpi": {"numProcPerNode", "mpiImplementation", "sshAuthMountPath"}
        | {"runLauncherAsNode"},
        "spec.template.spec": {"network", "successPolicy", "replicatedJobs"},
        "spec.template.spec.replicatedJobs": {"name", "template", "dependsOn", "replicas"},
    },
}
VERSIONS = {
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "MPIJob": "kubeflow.org/v2beta1",
    "TrainJob": "trainer.kubeflow.org/v1alpha1",
    "TrainingRuntime": "trainer.kubeflow.org/v1alpha1",
}


def load(name):
    return [found for found in yaml.safe_load_all((FOLDER / name).read_text()) if found]


def templates(value):
    """All pod templates in an object."""
    if isinstance(value, dict):
        spec = value.get("spec")
        if isinstance(spec, dict) and "containers" in spec:
            yield value
        else:
            for inner in value.values():
                yield from templates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from templates(inner)


def at(value, place):
    """The objects at a place, in all elements of the lists on the way."""
    found = [value]
    for key in filter(None, place.split(".")):
        found = [it[key] for it in found if key in it]
        found = [one for it in found for one in (it if isinstance(it, list) else [it])]
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_object_fits_its_schema(name):
    for found in load(name):
        if found["kind"] not in FIELDS:
            check([found])
            continue
        assert found["apiVersion"] == VERSIONS[found["kind"]]
        for place, allowed in FIELDS[found["kind"]].items():
            for inner in at(found, place):
                assert set(inner) <= allowed, f"{found['kind']} {place}"
        for job in at(found, "spec.replicatedJobs.template") if found["kind"] == "JobSet" else []:
            check([{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, **job}])
        for template in templates(found):
            spec = template["spec"]
            check([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}])


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith("mpijob")])
def test_pods_have_the_restricted_profile(name):
    for found in load(name):
        for template in templates(found):
            assert restricted(template["spec"]) == []


def test_every_manifest_is_explained():
    page = (ROOT / "docs" / "guide" / "kubernetes.md").read_text()
    for name in FILES:
        assert f"deploy/kubernetes/{name}" in page


# Stands in for the programs of the image, which import frameworks.
WORK = """
import socket
import horovod.raw as hvd
import numpy

hvd.init()
total = hvd.allreduce(numpy.arange(1000.0) * (hvd.rank() + 1), op=hvd.Sum)
factor = hvd.size() * (hvd.size() + 1) // 2
assert (total == numpy.arange(1000.0) * factor).all()
print(f"rank {hvd.rank()} of {hvd.size()} on {socket.gethostname()}", flush=True)
"""
SECRET = "3" * 64


def example(cluster, path, text):
    file = cluster.examples / path
    file.parent.mkdir()
    file.write_text(text)


def lines(*pods):
    text = "\n".join(pod.output() for pod in pods)
    found = [line for line in text.splitlines() if "rank " in line and " of " in line]
    return sorted(line[line.index("rank ") :] for line in found)


@needs_lab
def test_the_pods_of_an_indexed_job_meet_in_any_order(tmp_path):
    objects = [*load("indexed-job.yaml"), operators.secret("train", secret=SECRET)]
    with Cluster(tmp_path, objects) as cluster:
        example(cluster, "01-digits/train.py", WORK)
        pods = [cluster.start("Job", "train", index) for index in (2, 1, 0)]
        assert [pod.wait() for pod in pods] == [0, 0, 0], cluster.output()
        assert lines(*pods) == [f"rank {n} of 3 on train-{n}" for n in range(3)]


@needs_lab
def test_an_mpijob_runs_with_the_operators_hostfile_and_key(tmp_path):
    objects = list(operators.mpijob(one(load("mpijob.yaml"), "MPIJob"), tmp_path))
    with Cluster(tmp_path, objects) as cluster:
        example(cluster, "01-digits/train.py", WORK)
        workers = [cluster.start("Job", "train-worker", index) for index in range(2)]
        for worker in workers:
            cluster.until(lambda worker=worker: "Server listening" in worker.output())
        launcher = cluster.start("Job", "train-launcher")
        assert launcher.wait() == 0, cluster.output()
        assert lines(launcher) == [f"rank {n} of 2 on train-worker-{n}" for n in range(2)]


@needs_lab
def test_torchrun_in_a_trainjob_starts_the_ranks(tmp_path):
    objects = list(operators.trainjob_with_torch(one(load("trainjob.yaml"), "TrainJob")))
    with Cluster(tmp_path, [*objects, operators.secret("train", secret=SECRET)]) as cluster:
        example(cluster, "01-digits/train.py", WORK)
        pods = [cluster.start("Job", "train-node-0", index) for index in (1, 0)]
        assert [pod.wait(50) for pod in pods] == [0, 0], cluster.output()
        assert lines(*pods) == [f"rank {n} of 2 on train-node-0-{n}" for n in range(2)]


# Trains until two hosts have taken part for a while.
ELASTIC = PROGRAM.replace('os.path.exists(f"{folder}/over")', "hvd.size() == 2 and step > 20")


@needs_lab
def test_the_driver_of_a_jobset_finds_its_workers(tmp_path):
    found = one(load("jobset.yaml"), "JobSet")
    objects = [*operators.jobset(found), operators.secret("train", **{"agent-key": SECRET})]
    with Cluster(tmp_path, objects) as cluster:
        example(
            cluster,
            "09-elastic/train.py",
            'import os\nos.environ["SAY_FOLDER"] = "/tmp"\n' + ELASTIC,
        )
        driver = cluster.start("Job", "train-driver-0", 0)
        workers = [cluster.start("Job", "train-workers-0", index) for index in (0, 1)]
        assert driver.wait() == 0, cluster.output()
        # JobSet ends the workers now, which alone would not count as done.
        for worker in workers:
            worker.terminate()
        assert [worker.wait() for worker in workers] == [143, 143], cluster.output()


@needs_lab
def test_a_trainjob_may_have_standing_agents(tmp_path):
    runtime, found = load("trainjob-agents.yaml")
    objects = [*operators.trainjob_with_mpi(runtime, found)]
    objects.append(operators.secret("ronde", **{"agent-key": SECRET}))
    with Cluster(tmp_path, objects) as cluster:
        example(cluster, "01-digits/train.py", WORK)
        launcher = cluster.start("Job", "train-launcher-0", 0)
        nodes = [cluster.start("Job", "train-node-0", index) for index in (0, 1)]
        assert launcher.wait() == 0, cluster.output()
        assert lines(launcher) == [f"rank {n} of 2 on train-node-0-{n}" for n in range(2)]
        assert not any(node.gone for node in nodes)


@needs_lab
def test_an_elastic_mpijob_follows_the_operators_script(tmp_path):
    objects = list(operators.mpijob(one(load("mpijob-elastic.yaml"), "MPIJob"), tmp_path))
    with Cluster(tmp_path, objects) as cluster:
        example(
            cluster,
            "09-elastic/train.py",
            'import os\nos.environ["SAY_FOLDER"] = "/tmp"\n' + ELASTIC,
        )
        # The launcher is early: hosts that cannot be reached yet are tried again.
        launcher = cluster.start("Job", "train-launcher")
        for index in range(2):
            cluster.start("Job", "train-worker", index)
        assert launcher.wait() == 0, cluster.output()
