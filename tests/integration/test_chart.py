"""What the Helm chart renders, for many values."""

import base64
import functools
import json
import re
import subprocess

import pytest
import yaml
from chart_values import CASES, GPUS
from charts import (
    CHART,
    ROOT,
    VERSIONS,
    check,
    environment,
    files,
    helm,
    one,
    pod,
    refused,
    rendered,
    restricted,
)


def test_the_chart_is_linted():
    result = helm("lint", "--strict", CHART)
    assert result.returncode == 0, result.stdout + result.stderr


@functools.cache
def objects_of(case):
    return rendered(values=CASES[case])


@pytest.mark.parametrize("case", CASES)
def test_every_object_fits_the_schemas_of_many_versions(case):
    for version in VERSIONS:
        check(rendered("--kube-version", version, values=CASES[case]), [version])


@pytest.mark.parametrize(("version", "known"), [("1.30", False), ("1.31.0-gke.1", True)])
def test_workers_that_never_ran_go_when_the_work_is_done(version, known):
    workers = one(rendered("--kube-version", version), "Job", "ddp-ronde")["spec"]
    assert ("successPolicy" in workers) == known


@pytest.mark.parametrize("case", CASES)
def test_every_script_is_valid(case):
    for name, text in files(objects_of(case)).items():
        if name.endswith(".sh"):
            for shell in ("sh", "bash"):
                checked = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True)
                assert checked.returncode == 0, f"{name}: {checked.stderr}"


def paths(values, prefix=()):
    """The paths of all values, those of driver and worker without their role."""
    for key, value in values.items():
        path = prefix if not prefix and key in ("driver", "worker") else (*prefix, key)
        yield path
        if isinstance(value, dict):
            yield from paths(value, path)


def test_the_cases_cover_every_value():
    known = set(paths(yaml.safe_load((CHART / "values.yaml").read_text())))
    given = {path for case in CASES.values() for path in paths(case)}
    # Tests of their own cover these.
    given |= {("ssh", "hostKey"), ("ssh", "hostKeyPub"), ("number",)}
    assert known - given == set()


def test_the_guide_explains_every_value():
    page = (ROOT / "docs" / "guide" / "kubernetes.md").read_text()
    table = page[page.index("| value | means |") :]
    table = set(re.findall(r"`([\w.]+)`", table[: table.index("\n\n")]))
    explained = {name for value in table for name in (value, value.split(".")[-1])}
    known = {".".join(path) for path in paths(yaml.safe_load((CHART / "values.yaml").read_text()))}
    groups = {"", "image", "datasetPvc", "agent", "ssh"}
    missing = {
        it for it in known - groups if it not in explained and it.split(".")[-1] not in explained
    }
    assert missing == set()


def test_the_versions_of_chart_and_product_are_the_same():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    assert (chart["version"], chart["appVersion"]) == (version, version)


def test_pods_have_the_restricted_profile_by_default():
    objects = rendered()
    for role in ("worker", "driver"):
        found = pod(objects, role)
        assert restricted(found) == []
        assert found["securityContext"]["runAsUser"] == 1000
        assert found["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
        assert found["automountServiceAccountToken"] is False
        mounts = {it["mountPath"] for it in found["containers"][0]["volumeMounts"]}
        assert mounts == {"/horovod/generated", "/tmp", "/home/ronde", "/dev/shm"}


def test_the_hostfile_names_the_driver_and_every_worker():
    assert files(rendered("--set", "worker.number=2"))["hostfile"].splitlines() == [
        "ddp-ronde-driver slots=1",
        "ddp-ronde-0.ddp-ronde slots=1",
        "ddp-ronde-1.ddp-ronde slots=1",
    ]


@pytest.mark.parametrize(
    ("values", "driver", "worker"),
    [
        ({"resources": GPUS}, 4, 4),
        ({"resources": GPUS, "driver": {"resources": {"limits": {"cpu": 1}}}}, 1, 4),
        ({"worker": {"resources": GPUS}, "driver": {"slots": 0}}, 0, 4),
        ({"resources": GPUS, "worker": {"slots": 2}, "driver": {"slots": 3}}, 3, 2),
        ({"resources": {"limits": {"nvidia.com/gpu": "8"}}}, 8, 8),
    ],
)
def test_slots_come_from_gpu_limits(values, driver, worker):
    found = files(rendered(values=values))
    lines = [f"ddp-ronde-{n}.ddp-ronde slots={worker}" for n in range(3)]
    first = [f"ddp-ronde-driver slots={driver}"] if driver else []
    assert found["hostfile"].splitlines() == first + lines
    assert f"--slots {worker} &" in found["worker.sh"]
    assert ("ddp-ronde-driver" in found["discoverHosts.sh"]) == (driver > 0)


def test_environments_reach_their_pods():
    objects = rendered(values=CASES["environments"])
    worker, driver = (environment(objects, role) for role in ("worker", "driver"))
    assert (worker["COUNT"], worker["FLAG"], worker["NCCL_DEBUG"]) == ("1000000", "true", "INFO")
    assert "COUNT" not in driver and "IP" in driver and driver["NCCL_DEBUG"] == "INFO"
    assert driver["RONDE_REACH"] == "agent"
    assert worker["RONDE_HOST_ENV"] == "COUNT,FLAG" and "RONDE_HOST_ENV" not in driver


def test_ranks_have_nearly_the_whole_grace_period_to_leave():
    for period, seconds in ((120, "110"), (3600, "3590"), (1, "5")):
        objects = rendered("--set", f"worker.terminationGracePeriodSeconds={period}")
        assert environment(objects, "driver")["RONDE_LEAVE_TIMEOUT_SECONDS"] == seconds
        assert pod(objects, "worker")["terminationGracePeriodSeconds"] == period


def test_the_key_is_made_by_the_chart_and_differs_each_time():
    keys = set()
    for _ in range(2):
        coded = one(rendered(), "Secret")["data"]["agent-key"]
        keys.add(base64.b64decode(coded).decode())
    assert len(keys) == 2 and all(re.fullmatch("[0-9a-f]{64}", key) for key in keys)


def test_no_secret_is_in_a_pod_or_a_config_map():
    for values in ({}, CASES["ssh"]):
        objects = rendered(values=values)
        secrets = one(objects, "Secret")["data"].values()
        rest = json.dumps([it for it in objects if it["kind"] != "Secret"])
        for coded in filter(None, secrets):
            assert coded not in rest and base64.b64decode(coded).decode() not in rest


KEY = """-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1rZXktdjEAAAAA
AAAA+/==
-----END OPENSSH PRIVATE KEY-----
"""
PUBLIC = "ssh-rsa AAAAB3NzaC1yc2E+/== me@laptop\n"


def indented(text):
    return re.sub("^", "    ", text.rstrip("\n"), flags=re.M)


@pytest.mark.parametrize("change", [str, indented, str.strip])
def test_keys_for_ssh_may_arrive_indented(change):
    options = ["--set", "ssh.useSecret=true"]
    options += ["--set", f"ssh.hostKey={change(KEY)}", "--set", f"ssh.hostKeyPub={change(PUBLIC)}"]
    data = one(rendered(*options), "Secret")["data"]
    assert base64.b64decode(data["host-key"]).decode() == KEY
    assert base64.b64decode(data["host-key-pub"]).decode() == PUBLIC


def test_without_keys_the_chart_makes_one_for_ssh():
    data = one(rendered("--set", "ssh.useSecrets=true"), "Secret")["data"]
    assert base64.b64decode(data["host-key"]).decode().startswith("-----BEGIN EC PRIVATE KEY-----")
    assert set(data) == {"host-key", "host-key-pub"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"ssh": {"useSecret": True, "hostKeyPub": PUBLIC}}, "but not `ssh.hostKey`"),
        ({"ssh": {"useSecret": True, "hostKey": PUBLIC}}, "is not a private key"),
        ({"worker": {"kind": "Deployment"}}, "`worker.kind` is `Deployment`"),
        ({"worker": {"kind": "Job"}, "ssh": {"useSecret": True}}, "cannot be a Job"),
    ],
)
def test_a_mistake_is_named_with_what_to_do(values, expected):
    message = refused(values=values)
    assert expected in message and "hint: " in message


def test_with_ssh_it_is_horovods_way():
    objects = rendered(values=CASES["ssh"])
    workers = one(objects, "StatefulSet", "ddp-ronde")
    assert workers["spec"]["replicas"] == 3
    spec = pod(objects, "worker")
    assert spec["securityContext"]["runAsUser"] == 0
    assert spec["containers"][0]["readinessProbe"]["tcpSocket"] == {"port": "ssh"}
    assert environment(objects, "driver")["SSHPORT"] == "12345"
    assert one(objects, "Service", "ddp-ronde")["spec"]["publishNotReadyAddresses"] is False
