"""What the Helm chart renders, for many values."""

import base64
import json
import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from charts import CHART, ROOT, check, helm, one, refused, rendered, restricted

MPI_ARGS = (
    "--mca orte_keep_fqdn_hostnames t --allow-run-as-root --display-map --tag-output"
    " --timestamp-output"
)
GPUS = {"limits": {"nvidia.com/gpu": 4, "memory": "64Gi"}}
# Every value appears here at least once with something else than its default.
CASES = {
    "defaults": {},
    "a command": {"driver": {"args": ["horovodrun -np 4", "python train.py"], "retries": 2}},
    "a command as text": {"driver": {"args": f'horovodrun --mpi-args "{MPI_ARGS}" train.py'}},
    "gpus for both": {"resources": GPUS},
    "gpus for workers": {
        "worker": {"resources": GPUS, "slots": None},
        "driver": {"resources": {"limits": {"cpu": 1}}, "slots": 0, "activeDeadlineSeconds": 60},
    },
    "environments": {
        "env": {"NCCL_DEBUG": "INFO"},
        "worker": {"env": {"COUNT": 1000000, "FLAG": True}},
        "driver": {
            "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
        },
    },
    "ssh": {"ssh": {"useSecret": True, "port": 12345, "waitSeconds": 10}},
    "ssh, the other name": {"ssh": {"useSecrets": True}},
    "a claim": {
        "datasetPvc": {
            "enabled": True,
            "size": "1Ti",
            "storageClass": "fast",
            "keep": False,
            "accessModes": ["ReadOnlyMany"],
        },
    },
    "an existing claim": {
        "datasetPvc": {"enabled": True, "existing": "imagenet", "mountPath": "/imagenet"},
    },
    "volumes": {
        "volumes": [{"name": "code", "configMap": {"name": "code"}}],
        "volumeMounts": [{"name": "code", "mountPath": "/code"}],
        "worker": {
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        },
        "driver": {"volumes": [{"name": "logs", "emptyDir": {}}], "volumeMounts": []},
        "shmSize": "",
        "home": "/home/me",
    },
    "the host's namespaces": {
        "useHostNetwork": True,
        "useHostPID": True,
        "worker": {"privileged": True},
        "driver": {"privileged": True},
    },
    "scheduling": {
        "nodeSelector": {"gpu": "h100"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"role": "worker"}},
                    }
                ]
            }
        },
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "priorityClassName": "low",
        "runtimeClassName": "nvidia",
        "schedulerName": "volcano",
        "labels": {"kueue.x-k8s.io/queue-name": "training"},
        "annotations": {"sidecar.istio.io/inject": "false"},
        "worker": {
            "nodeSelector": {"gpu": "a100"},
            "priorityClassName": "high",
            "labels": {"team": "vision"},
            "annotations": {"note": "1"},
            "terminationGracePeriodSeconds": 600,
        },
        "driver": {
            "tolerations": [{"operator": "Exists"}],
            "affinity": {},
            "terminationGracePeriodSeconds": 5,
        },
    },
    "registries and accounts": {
        "imagePullSecrets": ["first", {"name": "second"}],
        "serviceAccountName": "trainer",
        "worker": {
            "image": {"repository": "example.com/ronde", "tag": "1", "pullPolicy": "Always"}
        },
        "driver": {"image": {"repository": "example.com/ronde", "tag": "2", "pullPolicy": "Never"}},
        "agent": {"existingSecret": "keys", "port": 4000},
    },
    "another user": {
        "podSecurityContext": {"runAsUser": 2000, "fsGroup": 2000},
        "securityContext": {"readOnlyRootFilesystem": False},
        "worker": {"securityContext": {"runAsGroup": 3}, "podSecurityContext": {"runAsUser": 4}},
    },
    "workers that stay": {"worker": {"kind": "StatefulSet", "podManagementPolicy": "OrderedReady"}},
    "no limits of time": {"ttlSecondsAfterFinished": None, "worker": {"leaveAfterSeconds": 0}},
    "names": {"nameOverride": "horovod"},
    "a long name": {"fullnameOverride": "x" * 80},
}


def files(objects):
    return one(objects, "ConfigMap")["data"]


def workload(objects, role):
    found = [it for it in objects if "template" in it.get("spec", {})]
    return next(it for it in found if it["metadata"]["labels"]["role"] == role)


def pod(objects, role):
    return workload(objects, role)["spec"]["template"]["spec"]


def environment(objects, role):
    return {it["name"]: it.get("value") for it in pod(objects, role)["containers"][0]["env"]}


def test_the_chart_is_linted():
    result = helm("lint", "--strict", CHART)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("case", CASES)
def test_every_object_fits_the_schemas_of_many_versions(case):
    check(rendered(values=CASES[case]))


@pytest.mark.parametrize("case", CASES)
def test_every_script_is_valid(case, tmp_path):
    for name, text in files(rendered(values=CASES[case])).items():
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


def test_only_the_two_numbers_change_when_workers_are_added():
    """Nothing else in the spec of a Job may change in an upgrade."""
    few, many = (rendered("--set", f"worker.number={n}") for n in (3, 6))
    before, after = (one(it, "Job", "ddp-ronde")["spec"] for it in (few, many))
    assert (after.pop("completions"), after.pop("parallelism")) == (6, 6)
    assert (before.pop("completions"), before.pop("parallelism")) == (3, 3)
    assert before == after
    assert workload(few, "driver") == workload(many, "driver")


def test_a_newer_chart_changes_no_pod(tmp_path):
    newer = tmp_path / "ronde"
    shutil.copytree(CHART, newer)
    text = (newer / "Chart.yaml").read_text()
    (newer / "Chart.yaml").write_text(re.sub("^version: .*", "version: 9.9.9", text, flags=re.M))
    for role in ("worker", "driver"):
        assert pod(rendered(), role) == pod(rendered(chart=newer), role)
        old, new = (workload(it, role)["spec"] for it in (rendered(), rendered(chart=newer)))
        assert old == new


def notes(folder, values):
    """What `helm install` prints; `helm template` does not."""
    chart = folder / "ronde"
    shutil.copytree(CHART, chart)
    shutil.copy(chart / "templates" / "NOTES.txt", chart / "files")
    wrapped = "notes: {{ tpl (.Files.Get `files/NOTES.txt`) . | quote }}\nkind: Notes\n"
    (chart / "templates" / "notes.yaml").write_text(wrapped + "metadata: {name: notes}\n")
    return one(rendered("-n", "team", values=values, chart=chart), "Notes")["notes"]


def test_the_notes_say_what_to_type(tmp_path):
    text = notes(tmp_path, {"resources": GPUS})
    assert "3 workers with 4 slots each, and 4 in the driver: 16 in all" in text
    assert "kubectl exec -n team -it job/ddp-ronde-driver -- bash" in text
    assert "horovodrun -np 16 --hostfile /horovod/generated/hostfile python train.py" in text
    assert "helm upgrade -n team ddp CHART --reuse-values --set worker.number=5" in text
    assert "helm uninstall -n team ddp" in text


def test_the_notes_of_a_job_say_how_to_watch_it(tmp_path):
    values = {"driver": {"args": "python train.py"}, "datasetPvc": {"enabled": True}}
    text = notes(tmp_path, values)
    assert "kubectl logs -n team -f job/ddp-ronde-driver" in text
    assert "The workers end when the driver's command has." in text
    assert "but the claim ddp-ronde-dataset" in text


# As much of a cluster's API as `lookup` needs: one Secret that is there already.
ANSWERS = {
    "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [{"name": "secrets", "namespaced": True, "kind": "Secret", "verbs": ["get"]}],
    },
    "/api/v1/namespaces/team/secrets/ddp-ronde": {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "ddp-ronde"},
        "data": {"agent-key": base64.b64encode(b"7" * 64).decode()},
    },
}


class ClusterApi(BaseHTTPRequestHandler):
    def do_GET(self):
        found = ANSWERS.get(self.path.split("?")[0])
        body = json.dumps(found or {"kind": "Status", "status": "Failure", "code": 404}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_an_upgrade_keeps_the_key():
    server = ThreadingHTTPServer(("127.0.0.1", 0), ClusterApi)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        at = f"http://127.0.0.1:{server.server_port}"
        options = ("--namespace", "team", "--dry-run=server", "--disable-openapi-validation")
        objects = rendered(*options, "--kube-apiserver", at)
    finally:
        server.shutdown()
        server.server_close()
    assert base64.b64decode(one(objects, "Secret")["data"]["agent-key"]) == b"7" * 64
