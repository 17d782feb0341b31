"""Fixed jobs on Ray: results, failures, placement, and what ends with what."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from jobs import until

from horovod import _native

pytest.importorskip("ray")

SETTINGS = {"timeout_s": 120, "placement_group_timeout_s": 60}


@pytest.fixture
def executor(ray_cluster):
    """Starts jobs, and ends them after the test."""
    from horovod.ray import RayExecutor

    started = []

    def start(*, start=True, **options):
        settings = RayExecutor.create_settings(**{**SETTINGS, **options.pop("settings", {})})
        started.append(RayExecutor(settings, **options))
        if start:
            started[-1].start()
        return started[-1]

    yield start
    for each in started:
        each.shutdown()


def place(scale=1):
    import numpy as np

    import horovod.raw as hvd

    hvd.init()
    total = float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
    local = (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())
    told = tuple(int(os.environ[f"HOROVOD_{name}"]) for name in ("RANK", "SIZE"))
    assert local == tuple(
        int(os.environ[f"HOROVOD_{name}"])
        for name in ("LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    )
    hvd.shutdown()
    return told, local, total * scale


def pid(_):
    return os.getpid()


def alive(pids):
    return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists() and not is_zombie(pid)]


def is_zombie(pid):
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def test_ranks_of_a_node_share_a_host_and_can_be_used_again(executor):
    job = executor(num_hosts=2, num_workers_per_host=2)
    for scale in (1, 2):
        assert job.run(place, args=[scale]) == [
            ((0, 4), (0, 2, 0, 2), 4.0 * scale),
            ((1, 4), (1, 2, 0, 2), 4.0 * scale),
            ((2, 4), (0, 2, 1, 2), 4.0 * scale),
            ((3, 4), (1, 2, 1, 2), 4.0 * scale),
        ]
    assert len(set(job.execute(pid))) == 4


def raises_on_one(wrong):
    import numpy as np

    import horovod.raw as hvd

    hvd.init()
    if hvd.rank() == wrong:
        raise KeyError("missing")
    while True:
        hvd.allreduce(np.ones(1))


def test_an_exception_is_raised_as_itself_and_frees_the_other_ranks(executor):
    job = executor(num_workers=3)
    with pytest.raises(KeyError) as raised:
        job.run(raises_on_one, args=[1])
    assert isinstance(raised.value, RuntimeError)
    assert "raised on rank 1 (" in "\n".join(raised.value.__notes__)
    assert "raises_on_one" in str(raised.value.__cause__)
    # The actors are still there, and form the next world.
    assert [total for *_, total in job.run(place)] == [3.0] * 3


class Counter:
    def __init__(self, first, step=1):
        import horovod.raw as hvd

        hvd.init()
        self.hvd, self.count, self.step = hvd, first, step

    def next(self):
        self.count += self.step
        return self.hvd.rank(), self.count, os.environ["WORD"]


def test_each_rank_keeps_its_object(executor):
    job = executor(num_workers=2, start=False)
    job.start(Counter, [10], {"step": 5}, extra_env_vars={"WORD": 7})
    assert job.execute(lambda counter: counter.next()) == [(0, 15, "7"), (1, 15, "7")]
    assert job.execute_single(lambda counter: counter.next()) == (0, 20, "7")
    assert job.execute(lambda counter: counter.next()) == [(0, 25, "7"), (1, 20, "7")]


def test_references_to_results_raise_the_exception_itself(executor):
    import ray

    job = executor(num_workers=2)
    assert ray.get(job.run_remote(lambda x: x + 1, [1])) == [2, 2]
    with pytest.raises(ZeroDivisionError, match="raised on rank"):
        ray.get(job.run_remote(lambda x: 1 / x, [0]))


def logs_its_rank():
    import horovod.raw as hvd
    from horovod.ray import ray_logger

    hvd.init()
    for number in range(3):
        ray_logger.log({"rank": hvd.rank(), "number": number}, chief_only=number == 0)
    hvd.shutdown()


def test_what_ranks_log_reaches_the_callbacks(executor):
    job, heard, again = executor(num_workers=2), [], []
    job.run(logs_its_rank, callbacks=[heard.append, again.append])
    assert heard == again
    assert sorted((each["rank"], each["number"]) for each in heard) == [
        *[(0, 0), (0, 1), (0, 2)],
        *[(1, 1), (1, 2)],
    ]
    from horovod.ray import ray_logger

    with pytest.warns(UserWarning, match="no callbacks"):
        ray_logger.log({})


def test_a_killed_actor_is_named_and_the_others_do_not_wait(executor):
    job = executor(num_workers=3)
    pids = job.execute(pid)
    timer = threading.Timer(1, os.kill, [pids[1], signal.SIGKILL])
    timer.start()
    with pytest.raises(RuntimeError, match=r"rank 1 \(.*\) died"):
        job.run(raises_on_one, args=[None])
    with pytest.raises(RuntimeError, match="rank 1"):
        job.run(place)
    job.shutdown()
    until(lambda: not alive(pids), 30, lambda: f"left behind: {alive(pids)}")


def test_a_cluster_that_is_too_small_is_reported_at_once(executor, capfd):
    from horovod.ray import RayExecutor

    job = executor(num_workers=50, settings={"placement_group_timeout_s": 1}, start=False)
    with pytest.raises(TimeoutError, match="Placement group creation timed out") as raised:
        job.start()
    said = "the cluster has room for 4 of 50 bundles that need 1 CPU each"
    assert said in str(raised.value) and f"warning: {said}" in capfd.readouterr().err
    spread = executor(num_hosts=3, settings={"placement_group_timeout_s": 1}, start=False)
    with pytest.raises(TimeoutError, match=r"room for 2 of 3 bundles .* on nodes of their own"):
        spread.start()
    for options, words in [
        ({}, "num_workers"),
        ({"num_workers": 1, "gpus_per_worker": 1}, "use_gpu"),
        ({"num_workers": 1, "use_gpu": True, "gpus_per_worker": 0}, "gpus_per_worker must be >= 1"),
        ({"num_workers": 1, "max_workers": 2}, "`max_workers` provided without any positive"),
        ({"num_workers": 1, "min_workers": 2}, "Both `min_workers` and `num_workers` provided"),
    ]:
        with pytest.raises(ValueError, match=words):
            RayExecutor(RayExecutor.create_settings(), **options)


def test_a_function_that_does_not_pickle_is_reported_before_it_runs(executor):
    job = executor(num_workers=1)
    lock = threading.Lock()
    with pytest.raises(TypeError, match="lock"):
        job.run(lambda: lock)
    assert job.run(len, args=[[1]]) == [1]


@pytest.mark.long
def test_a_killed_node_is_named(ray_cluster, executor):
    from ray_cluster import wait_until_dead

    node = ray_cluster.cluster.add_node(num_cpus=3)
    ray_cluster.cluster.wait_for_nodes()
    job = executor(num_hosts=3)
    hosts = job.execute(lambda _: os.environ["HOROVOD_HOSTNAME"])
    (victim,) = [rank for rank, host in enumerate(hosts) if host.endswith(node.node_id[:8])]
    timer = threading.Timer(1, ray_cluster.cluster.remove_node, [node], {"allow_graceful": False})
    timer.start()
    with pytest.raises(RuntimeError, match=rf"rank {victim} \({hosts[victim]}\)"):
        job.run(raises_on_one, args=[None])
    timer.join()
    wait_until_dead(node)


DRIVER = """
import os, sys, time
import ray
from horovod.ray import RayExecutor

def stay():
    import numpy as np
    import horovod.raw as hvd

    hvd.init()
    open(os.path.join(FOLDER, str(os.getpid())), "w").close()
    while True:
        hvd.allreduce(np.ones(1))

address, FOLDER, *elastic = sys.argv[1:]
ray.init(address=address, log_to_driver=False)
options = {"min_workers": 2, "max_workers": 2} if elastic else {"num_workers": 2}
executor = RayExecutor(RayExecutor.create_settings(), **options)
executor.start()
executor.run(stay)
"""


@pytest.mark.parametrize("kind", ["fixed", pytest.param("elastic", marks=pytest.mark.long)])
def test_ranks_end_with_the_driver(ray_cluster, tmp_path, kind):
    words = [
        ray_cluster.cluster.address,
        str(tmp_path),
        *(["elastic"] if kind == "elastic" else []),
    ]
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, *words])

    def ranks():
        return [int(path.name) for path in tmp_path.iterdir()]

    try:
        until(lambda: len(ranks()) == 2, 50, lambda: f"only {ranks()} have started")
    finally:
        driver.kill()
        driver.wait()
    until(lambda: not alive(ranks()), 30, lambda: f"left behind: {alive(ranks())}")


CLIENT = """
import sys
import ray
from horovod.ray import RayExecutor

def total(scale):
    import numpy as np
    import horovod.raw as hvd
    from horovod.ray import ray_logger

    hvd.init()
    ray_logger.log(hvd.rank(), chief_only=False)
    found = float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0]) * scale
    hvd.shutdown()
    return found

def fail():
    raise KeyError("missing")

ray.init(address=sys.argv[1], log_to_driver=False)
kind = {"fixed": {"num_workers": 2}, "elastic": {"min_workers": 2, "max_workers": 2}}
executor = RayExecutor(RayExecutor.create_settings(120), **kind[sys.argv[2]])
executor.start()
heard = []
print(executor.run(total, args=[5], callbacks=[heard.append]), sorted(heard), flush=True)
try:
    executor.run(fail)
except KeyError as error:
    print("raised on rank" in str(error.__notes__), flush=True)
executor.shutdown()
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["fixed", "elastic"])
def test_jobs_run_through_ray_client(ray_cluster, kind):
    port = _native.free_port()
    command = [sys.executable, "-m", "ray.util.client.server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--address", ray_cluster.cluster.address]
    server = subprocess.Popen(command)
    try:
        words = [sys.executable, "-c", CLIENT, f"ray://127.0.0.1:{port}", kind]
        ran = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=55)
    finally:
        server.terminate()
        server.wait()
    assert ran.returncode == 0
    assert ran.stdout.splitlines() == ["[10.0, 10.0] [0, 1]", "True"]


def tuned(config):
    from ray import tune

    from horovod.ray import RayExecutor

    executor = RayExecutor(RayExecutor.create_settings(120), num_workers=2)
    executor.start()
    totals = [total for *_, total in executor.run(place, args=[config["scale"]])]
    executor.shutdown()
    tune.report({"total": totals[0]})


@pytest.mark.long
def test_a_trial_of_tune_uses_its_placement_group(ray_cluster, tmp_path):
    import ray.cloudpickle
    from ray import tune

    # Tune's workers do not look for modules where pytest does.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    group = tune.PlacementGroupFactory([{"CPU": 1}] + [{"CPU": 1}] * 2)
    tuner = tune.Tuner(
        tune.with_resources(tuned, group),
        param_space={"scale": 10},
        run_config=tune.RunConfig(storage_path=str(tmp_path)),
    )
    assert [each.metrics["total"] for each in tuner.fit()] == [20.0]


def test_a_placement_group_that_is_too_small_is_refused(ray_cluster):
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    def trial():
        from horovod.ray import RayExecutor

        executor = RayExecutor(RayExecutor.create_settings(), num_workers=3)
        try:
            executor.start()
        except ValueError as error:
            return str(error)

    group = placement_group([{"CPU": 1}] * 2)
    where = PlacementGroupSchedulingStrategy(group)
    try:
        said = ray.get(ray.remote(trial).options(num_cpus=0, scheduling_strategy=where).remote())
    finally:
        remove_placement_group(group)
    assert "the current placement group has room for 2 of 3 workers that need 1 CPU" in said


@pytest.mark.long
def test_results_of_a_gigabyte_arrive(executor):
    job = executor(num_hosts=2)

    def large():
        import numpy as np

        import horovod.raw as hvd

        hvd.init()
        return np.full(1 << 30, hvd.rank(), dtype=np.uint8)

    for rank, result in enumerate(job.run(large)):
        assert result.nbytes == 1 << 30 and result[0] == result[-1] == rank


def test_actors_of_others_meet_through_a_coordinator(ray_cluster):
    import ray

    from horovod.ray import BaseHorovodWorker
    from horovod.ray.runner import Coordinator, MiniSettings
    from horovod.ray.utils import detect_nics, map_blocking, nics_to_env_var

    settings = MiniSettings()
    coordinator = Coordinator(settings)
    actor = ray.remote(BaseHorovodWorker).options(num_cpus=1, scheduling_strategy="SPREAD")
    workers = [actor.remote(world_rank=rank, world_size=2) for rank in range(2)]
    nodes = map_blocking(lambda worker: worker.node_id.remote(), workers)
    for rank, node in enumerate(nodes):
        coordinator.register("same", node, rank)
    assert (coordinator.world_size, coordinator.hostnames) == (2, ["same"])
    for rank, numbers in coordinator.finalize_registration().items():
        ray.get(workers[rank].update_env_vars.remote(numbers))
    variables = coordinator.establish_rendezvous()
    assert variables["HOROVOD_GLOO_RENDEZVOUS_PORT"] == str(coordinator.global_rendezv_port)
    variables.update(nics_to_env_var(detect_nics(settings, all_host_names=["same"])))
    map_blocking(lambda worker: worker.update_env_vars.remote(variables), workers)

    def join(_):
        import horovod.raw as hvd

        hvd.init()
        return hvd.rank(), hvd.size(), hvd.cross_size()

    found = map_blocking(lambda worker: worker.execute.remote(join), workers)
    assert found == [(0, 2, len(set(nodes))), (1, 2, len(set(nodes)))]
