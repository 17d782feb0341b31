"""What operators make from their objects: pods, hostfiles, keys, variables.

As far as Ronde notices, these are JobSet, Kubeflow's MPI operator and Kubeflow's Trainer. They turn
an object into Jobs, ConfigMaps and Secrets, which `pods.Cluster` can run.
"""

import base64
import copy
import subprocess
from pathlib import Path

# Of root, where the MPI operator mounts keys by default.
HOME = "/root"


def jobset(found):
    """The Jobs of a JobSet: named after it, their pods after them."""
    name, spec = found["metadata"]["name"], found["spec"]
    subdomain = spec.get("network", {}).get("subdomain", name)
    for group in spec["replicatedJobs"]:
        job = copy.deepcopy(group["template"])
        title = f"{name}-{group['name']}-0"
        job.update(apiVersion="batch/v1", kind="Job")
        job["metadata"] = {**job.get("metadata", {}), "name": title}
        pod = job["spec"]["template"]["spec"]
        pod["subdomain"] = subdomain
        yield job


def mpijob(found, folder):
    """The launcher and the workers of an MPIJob, with its hostfile, script and ssh key."""
    name, spec = found["metadata"]["name"], found["spec"]
    roles = spec["mpiReplicaSpecs"]
    slots, count = spec.get("slotsPerWorker", 1), roles["Worker"]["replicas"]
    hosts = [f"{name}-worker-{index}.{name}" for index in range(count)]
    hostfile = "".join(f"{host} slots={slots}\n" for host in hosts)
    script = "#!/bin/sh\n" + "".join(f"echo {host}\n" for host in hosts)
    yield _object("ConfigMap", "config", data={"hostfile": hostfile, "discover_hosts.sh": script})
    yield _object("Secret", "ssh", data=_ssh_key(Path(folder) / "mpi"))
    for role, title in (("Launcher", f"{name}-launcher"), ("Worker", f"{name}-worker")):
        pod = copy.deepcopy(roles[role]["template"]["spec"])
        pod["subdomain"] = name
        container = pod["containers"][0]
        secret = {"secretName": "ssh", "defaultMode": 0o600}
        _add(pod, container, "ssh-auth", {"secret": secret}, f"{HOME}/.ssh")
        if role == "Launcher":
            pod["hostname"] = title
            files = {"configMap": {"name": "config", "defaultMode": 0o555}}
            _add(pod, container, "mpi-job-config", files, "/etc/mpi")
        yield _object("Job", title, spec={"template": {"spec": pod}})


def trainjob_with_torch(found):
    """The Job of a TrainJob with the runtime `torch-distributed`."""
    name, trainer = found["metadata"]["name"], found["spec"]["trainer"]
    known = {
        "PET_NNODES": trainer["numNodes"],
        "PET_NPROC_PER_NODE": trainer["numProcPerNode"],
        "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
        "PET_MASTER_PORT": 29500,
    }
    container = {
        "name": "node",
        "image": trainer["image"],
        "command": trainer["command"],
        "env": [*trainer["env"], *({"name": key, "value": str(it)} for key, it in known.items())],
    }
    pod = {"subdomain": name, "containers": [container]}
    yield _object("Job", f"{name}-node-0", spec={"template": {"spec": pod}})


def trainjob_with_mpi(runtime, found):
    """The Jobs of a TrainJob whose runtime has the policy `mpi`, and its hostfile."""
    name, trainer = found["metadata"]["name"], found["spec"]["trainer"]
    slots = trainer["numProcPerNode"]
    hosts = [f"{name}-node-0-{index}.{name}" for index in range(trainer["numNodes"])]
    hostfile = "".join(f"{host} slots={slots}\n" for host in hosts)
    yield _object("ConfigMap", "hostfile", data={"hostfile": hostfile})
    template = {"metadata": {"name": name}, "spec": runtime["spec"]["template"]["spec"]}
    for job in jobset(template):
        pod = job["spec"]["template"]["spec"]
        if "launcher" in job["metadata"]["name"]:
            container = pod["containers"][0]
            container["command"] = trainer["command"]
            files = {"configMap": {"name": "hostfile", "defaultMode": 0o444}}
            _add(pod, container, "mpi-hostfile", files, "/etc/mpi")
        yield job


def secret(name, **data):
    """A Secret as `kubectl create secret generic` makes it."""
    coded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    return _object("Secret", name, data=coded)


def _object(kind, name, **more):
    return {"kind": kind, "metadata": {"name": name}, **more}


def _add(pod, container, name, source, path):
    pod.setdefault("volumes", []).append({"name": name, **source})
    container.setdefault("volumeMounts", []).append({"name": name, "mountPath": path})


def _ssh_key(path):
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-m", "PEM", "-N", ""]
    subprocess.run([*command, "-f", str(path)], check=True)
    private, public = path.read_bytes(), path.with_suffix(".pub").read_bytes()
    files = {"id_rsa": private, "id_rsa.pub": public, "authorized_keys": public}
    return {name: base64.b64encode(content).decode() for name, content in files.items()}
