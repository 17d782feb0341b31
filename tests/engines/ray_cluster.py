"""Ray clusters of several nodes on this machine."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

from jobs import MARK, environments, until


class RayCluster:
    """Two nodes, each with two CPUs; this process is connected to the cluster as its driver.

    `cluster` is Ray's own `cluster_utils.Cluster`, for tests that add or remove nodes.
    """

    def __init__(self, nodes=2, cpus=2):
        import ray
        from ray.cluster_utils import Cluster

        # Ray waits for its raylet for 30 s, which a busy machine may need more than once.
        for attempt in range(3):
            self.cluster = Cluster(
                initialize_head=True,
                head_node_args={"num_cpus": cpus, "include_dashboard": False},
            )
            try:
                for _ in range(nodes - 1):
                    self.cluster.add_node(num_cpus=cpus)
                break
            except Exception:
                self.cluster.shutdown()
                if attempt == 2:
                    raise
        ray.init(address=self.cluster.address, log_to_driver=False)

    def stop(self):
        import ray

        ray.shutdown()
        self.cluster.shutdown()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def wait_until_dead(node):
    """Waits until Ray knows that a node is dead: until then it may start actors there."""
    import ray

    def alive():
        return [each for each in ray.nodes() if each["NodeID"] == node.node_id and each["Alive"]]

    until(lambda: not alive(), 50, lambda: "Ray has not noticed that the node is dead")


def autoscaler(most, address):
    """What Ray's autoscaler reads: it starts nodes as processes of this machine."""
    provider = {"type": "fake_multinode", "gcs_address": address, "disable_node_updaters": True}
    one = {"node_config": {}, "resources": {"CPU": 1}, "min_workers": 0, "max_workers": most}
    head = {"node_config": {}, "resources": {"CPU": 0}, "min_workers": 0, "max_workers": 0}
    # The autoscaler looks for these, although there is nothing to set up.
    nothing = {f"{kind}_commands": [] for kind in ("initialization", "setup", "head_setup")}
    nothing.update({f"{kind}_commands": [] for kind in ("worker_setup", "head_start_ray")})
    nothing.update(worker_start_ray_commands=[], file_mounts={}, cluster_synced_files=[], auth={})
    return {
        **nothing,
        "cluster_name": "ronde-test",
        "max_workers": most,
        "provider": provider,
        "available_node_types": {"ray.head.default": head, "one": one},
        "head_node_type": "ray.head.default",
        "upscaling_speed": 10,
        "idle_timeout_minutes": 5,
    }


class AutoscalingRay:
    """A head node without CPUs, to which Ray's autoscaler adds nodes of one CPU on this machine.

    It knows nodes by their address, and takes a head that has CPUs and their address for free.

    Ray's `AutoscalingCluster` begins and ends by killing every Ray process of the machine; this one
    ends its own. `address` is that of the cluster.
    """

    def __init__(self, most=2):
        from horovod import _native

        self._mark = f"{MARK}={uuid.uuid4().hex}"
        self._folder = tempfile.TemporaryDirectory(prefix="ray-")
        file = Path(self._folder.name, "config.json")
        port = _native.free_port()
        file.write_text(json.dumps(autoscaler(most, f"127.0.0.1:{port}")))
        self.address = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head"]
        command += [f"--autoscaling-config={file}", "--num-cpus=0", f"--port={port}"]
        command += ["--include-dashboard=false", f"--ray-client-server-port={_native.free_port()}"]
        name, value = self._mark.split("=")
        env = {**os.environ, name: value}
        env.update(AUTOSCALER_UPDATE_INTERVAL_S="1", RAY_FAKE_CLUSTER="1", RAY_AUTH_MODE="disabled")
        try:
            subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        except BaseException:
            self.stop()
            raise

    def stop(self):
        until(lambda: not self._kill(), 30, lambda: "Ray's processes are left")
        self._folder.cleanup()

    def _kill(self):
        """Kills its processes; those that were there."""
        entry = self._mark.encode()
        found = [pid for pid, env in environments() if entry in env]
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
