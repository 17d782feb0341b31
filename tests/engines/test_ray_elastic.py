"""Elastic jobs on Ray: nodes that come and die, ranks that fail, and what the callbacks hear."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")


def steps(folder, limit=None):
    """Reduces until a file named `stop` is there; says where it is at every step."""
    import time

    import numpy as np

    import horovod.raw as hvd
    from horovod.common.elastic import ObjectState, rejoin, run_fn
    from horovod.common.objects import broadcast_object
    from horovod.ray import ray_logger

    def train(state):
        while limit is None or state.step < limit:
            stop = np.array([float(Path(folder, "stop").exists())])
            if hvd.allreduce(stop, op=hvd.Max, name="stop")[0]:
                break
            ray_logger.log({"step": state.step, "size": hvd.size(), "pid": os.getpid()})
            state.step += 1
            state.commit()
            time.sleep(0.05)
        return hvd.rank(), hvd.size(), os.environ.get("WORD"), state.step

    hvd.init()
    state = ObjectState(broadcast_object, hvd.rank, step=0)
    return run_fn(train, rejoin)(state)


class Watch:
    """Hears what rank 0 logs, and acts once on each size of the world that it is told of."""

    def __init__(self, **actions):
        self.sizes, self.steps, self._actions = [], [], actions

    def __call__(self, logged):
        self.steps.append(logged["step"])
        if not self.sizes or self.sizes[-1] != logged["size"]:
            self.sizes.append(logged["size"])
            step = "_".join(map(str, self.sizes))
            action = self._actions.pop(f"after_{step}", None)
            if action:
                action()


@pytest.fixture
def elastic(ray_cluster, tmp_path):
    from horovod.ray import RayExecutor

    def start(discovery=None, **options):
        settings = RayExecutor.create_settings(120)
        settings.discovery = discovery
        job = RayExecutor(settings, elastic_timeout=50, **options)
        job.start(extra_env_vars={"WORD": "here"})
        return job

    return start


def test_a_node_is_used_as_soon_as_it_is_there_and_may_die(elastic, ray_cluster, tmp_path):
    from ray_cluster import wait_until_dead

    cluster, nodes = ray_cluster.cluster, []
    watch = Watch(
        after_2=lambda: nodes.append(cluster.add_node(num_cpus=2)),
        after_2_3=lambda: cluster.remove_node(nodes[0], allow_graceful=False),
        after_2_3_2=(tmp_path / "stop").touch,
    )
    job = elastic(min_workers=2, max_workers=3, cpus_per_worker=2)
    found = job.run(steps, args=[str(tmp_path)], callbacks=[watch])
    assert watch.sizes == [2, 3, 2]
    assert [each[:3] for each in found] == [(0, 2, "here"), (1, 2, "here")]
    # No step was lost or repeated on rank 0, which committed each.
    assert watch.steps == sorted(watch.steps)
    wait_until_dead(nodes[0])


def test_a_killed_rank_comes_back_after_its_cooldown(elastic, tmp_path):
    worlds, newest = [], -1

    def watch(logged):
        nonlocal newest
        # The last words of a killed rank may arrive after the first of its successor.
        if logged["step"] <= newest:
            return
        newest = logged["step"]
        if worlds and worlds[-1][0] == logged["size"]:
            return
        worlds.append((logged["size"], logged["step"]))
        sizes = [size for size, _ in worlds]
        if sizes in ([2], [1, 2]):
            os.kill(logged["pid"], signal.SIGKILL)
        elif sizes[-2:] == [1, 2]:
            (tmp_path / "stop").touch()

    job = elastic(min_workers=1, max_workers=2, cooldown_range=(1, 2))
    found = job.run(steps, args=[str(tmp_path)], callbacks=[watch])
    assert [each[:2] for each in found] == [(0, 2), (1, 2)]
    # The survivor went on where it was.
    assert worlds[-1][1] >= worlds[-2][1] > 0


def test_hosts_may_come_from_the_program(elastic, tmp_path):
    import ray

    from horovod.ray import ElasticRayExecutor
    from horovod.runner.elastic.discovery import FixedHosts

    address = ray.util.get_node_ip_address()
    hosts = FixedHosts({address: 2})
    watch = Watch(after_2=lambda: hosts.set({address: 1}), after_2_1=(tmp_path / "stop").touch)
    settings = ElasticRayExecutor.create_settings(min_num_proc=1, discovery=hosts)
    job = ElasticRayExecutor(settings, env_vars={"WORD": 5}, override_discovery=False)
    job.start()
    found = job.run(lambda: steps(str(tmp_path)), callbacks=[watch])
    assert watch.sizes[-2:] == [2, 1] and [each[:3] for each in found] == [(0, 1, "5")]
    assert watch.steps == sorted(set(watch.steps)), "a step was lost or repeated"


def test_what_an_elastic_job_cannot_do_is_refused(elastic):
    from horovod.ray import RayExecutor

    job = elastic(min_workers=1)
    for call in (job.run_remote, job.execute_single):
        with pytest.raises(NotImplementedError, match="does not work in an elastic job"):
            call(len)
    with pytest.raises(ValueError, match="max_workers is 1, less than min_workers, 2"):
        RayExecutor(RayExecutor.create_settings(), min_workers=2, max_workers=1)


GROWS = """
import sys
from pathlib import Path

import ray
from horovod.ray import RayExecutor

address, folder, *path = sys.argv[1:]
sys.path += path
from test_ray_elastic import Watch, steps

ray.init(address=address, log_to_driver=False)
stop = Path(folder, "stop").touch
watch = Watch(after_1_2=stop, after_2=stop)
job = RayExecutor(RayExecutor.create_settings(), min_workers=1, max_workers=2)
job.start()
print(len(job.run(steps, args=[folder], callbacks=[watch])), watch.sizes[-1])
"""


@pytest.mark.long
def test_the_job_asks_the_autoscaler_for_nodes(autoscaling_ray, tmp_path):
    engines = Path(__file__).resolve().parent
    words = [
        autoscaling_ray.address,
        str(tmp_path),
        str(engines),
        str(engines.parent / "integration"),
    ]
    ran = subprocess.run(
        [sys.executable, "-c", GROWS, *words],
        stdout=subprocess.PIPE,
        text=True,
        timeout=55,
        env={**os.environ, "RAY_AUTH_MODE": "disabled"},
    )
    assert ran.stdout.split("\n")[-2] == "2 2"


@pytest.fixture
def autoscaling_ray():
    from ray_cluster import AutoscalingRay

    with AutoscalingRay(most=2) as cluster:
        yield cluster
