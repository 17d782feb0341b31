"""What `helm install` prints, and what `helm upgrade` changes."""

import base64
import json
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from chart_values import GPUS
from charts import CHART, one, pod, rendered, workload


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
