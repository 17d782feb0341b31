"""Renders the Helm chart, and checks objects against the schemas of several Kubernetes versions."""

import functools
import platform
import subprocess
import sys
from pathlib import Path

import kubernetes_validate.utils
import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "ronde"
# The oldest version that the chart accepts, the newest one known, and some between.
VERSIONS = ("1.27", "1.29", "1.31", "1.33", "1.35", "1.37")

# Each check would read the same large files again.
kubernetes_validate.utils.schema_contents = functools.cache(
    kubernetes_validate.utils.schema_contents
)


def helm(*arguments, **more):
    """Runs `helm`, which is beside this interpreter."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("the package index has `helm-binary` for Linux on x86-64 only")
    command = [str(Path(sys.executable).with_name("helm")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def rendered(*options, values=None, chart=CHART, release="ddp"):
    """The objects that the chart makes; `values` are those of a values file."""
    file = ["--values", "-"] if values is not None else []
    result = helm("template", release, chart, *file, *options, input=yaml.safe_dump(values))
    assert result.returncode == 0, result.stderr
    assert "warning" not in result.stderr, result.stderr
    return [found for found in yaml.safe_load_all(result.stdout) if found]


def refused(*options, values=None):
    """Why the chart cannot be rendered."""
    file = ["--values", "-"] if values is not None else []
    result = helm("template", "ddp", CHART, *file, *options, input=yaml.safe_dump(values))
    assert result.returncode != 0, result.stdout
    return result.stderr


def one(objects, kind, name=None):
    """The only object of a kind, or the one with a name."""
    found = [it for it in objects if it["kind"] == kind and name in (None, it["metadata"]["name"])]
    assert len(found) == 1, [(it["kind"], it["metadata"]["name"]) for it in objects]
    return found[0]


def check(objects, versions=VERSIONS):
    """Checks objects against the schemas: unknown fields are errors."""
    for found in objects:
        for version in versions:
            kubernetes_validate.validate(found, version, strict=True)


def restricted(pod):
    """What a pod spec lacks for the restricted profile of Kubernetes' pod security standards."""
    missing = []
    outer = pod.get("securityContext", {})
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(key):
            missing.append(key)
    allowed = {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"}
    for volume in pod.get("volumes", []):
        if not set(volume) - {"name"} <= allowed:
            missing.append(f"volume {volume['name']}")
    for container in pod.get("initContainers", []) + pod["containers"]:
        inner = {**outer, **container.get("securityContext", {})}
        wanted = {
            "runAsNonRoot": inner.get("runAsNonRoot") is True,
            "runAsUser": inner.get("runAsUser", 1) != 0,
            "privileged": not inner.get("privileged"),
            "allowPrivilegeEscalation": inner.get("allowPrivilegeEscalation") is False,
            "capabilities": inner.get("capabilities") == {"drop": ["ALL"]},
            "seccompProfile": inner.get("seccompProfile") == {"type": "RuntimeDefault"},
        }
        missing += [f"{container['name']}: {key}" for key, fine in wanted.items() if not fine]
        missing += [f"port {it}" for it in container.get("ports", []) if "hostPort" in it]
    return missing


def files(objects):
    """The files of the ConfigMap."""
    return one(objects, "ConfigMap")["data"]


def workload(objects, role):
    """The Job or StatefulSet of a role."""
    found = [it for it in objects if "template" in it.get("spec", {})]
    return next(it for it in found if it["metadata"]["labels"]["role"] == role)


def pod(objects, role):
    """The spec of a role's pods."""
    return workload(objects, role)["spec"]["template"]["spec"]


def environment(objects, role):
    """The variables of a role's container."""
    return {it["name"]: it.get("value") for it in pod(objects, role)["containers"][0]["env"]}
