"""`horovod.spark.run` and `run_elastic`: jobs whose agents are carried by tasks of Spark."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from horovod.common import environment
from horovod.runner.agents import AgentJob
from horovod.runner.failure import RankFailure
from horovod.spark.agent_task import agent_task
from horovod.spark.capacity import is_dynamic, limit
from horovod.spark.cluster import Cluster
from horovod.spark.conf import ignored
from horovod.spark.failures import Failures, NotStarted
from horovod.spark.stage import Plan, Stage, StageFailed

__all__ = ["run", "run_elastic"]

_COOLDOWN = (1, 60)
# How long tasks may take to end by themselves once their job is over.
_END_SECONDS = 2.0


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: int | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: dict[str, str] | None = None,
    stdout: IO[str] | None = None,
    stderr: IO[str] | None = None,
    verbose: int = 1,
    nics: Sequence[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Call a function on several ranks in tasks of Spark and return what it returned on each.

    Needs an active Spark session, through a SparkContext or Spark Connect. Each rank is a process
    of its own, started by a task on its executor, with the GPUs that Spark assigned to the task.
    The tasks run in barrier mode, which starts all at once; under dynamic allocation they start one
    by one. Executors must be able to connect to this machine.

    Args:
        fn: Function to call; it calls `hvd.init()` itself.
        args: Its arguments (default: none).
        kwargs: Its keyword arguments (default: none).
        num_proc: Number of ranks (default: Spark's default parallelism).
        start_timeout: How long to wait for all tasks to start, in seconds (default:
            `HOROVOD_SPARK_START_TIMEOUT`, or 600).
        use_mpi: True is refused: MPI would start the ranks outside the tasks (default: None).
        use_gloo: Accepted, without effect (default: None).
        extra_mpi_args: Accepted, without effect (default: None).
        env: Further environment variables for the ranks (default: none).
        stdout: Where their standard output is shown (default: that of this process).
        stderr: Where their standard error is shown (default: that of this process).
        verbose: 2 and more shows what the launcher does (default: 1).
        nics: Network interfaces to use (default: all that connect the hosts).
        prefix_output_with_timestamp: Whether lines of output begin with the time (default: no).
        executable: The Python of the ranks (default: that of the executors).

    Returns:
        The results, in the order of the ranks.

    Raises:
        RuntimeError: If the job failed: the exception of a rank, also of its own class, as with
            `horovod.run`; or what Spark says.
        ValueError: If the application can never run so many tasks, or arguments are invalid.
    """
    if use_mpi:
        raise ValueError(
            "use_mpi is not supported in horovod.spark.run: the tasks of Spark start the ranks, "
            "which connect without MPI; leave it out"
        )
    if extra_mpi_args:
        warnings.warn("extra_mpi_args has no effect: no MPI is involved", stacklevel=2)
    cluster = Cluster.active()
    count = cluster.parallelism() if num_proc is None else num_proc
    start_timeout = _start_timeout(start_timeout)
    _check(cluster, count, env)
    with Failures(start_timeout) as failures:
        job = AgentJob(
            fn,
            args,
            kwargs,
            agents=count,
            start_timeout=start_timeout,
            nics=nics,
            verbose=verbose > 1,
            prefix_output_with_timestamp=prefix_output_with_timestamp,
            event_log=failures.event_log,
            executable=executable,
            stdout=stdout,
            stderr=stderr,
        )
        plan = Plan(count, together=not is_dynamic(cluster.setting), patience=_END_SECONDS)
        return _run_agents(job, cluster, plan, failures, env, stderr)


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: int | None = None,
    elastic_timeout: int | None = None,
    reset_limit: int | None = None,
    env: dict[str, str] | None = None,
    stdout: IO[str] | None = None,
    stderr: IO[str] | None = None,
    verbose: int = 1,
    nics: Sequence[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Like `run`, for training that survives the loss of executors and uses new ones.

    There are as many tasks as ranks at most. A task that Spark restarts, or starts late, offers its
    slot to the running job. How often Spark restarts one is up to its settings: see
    `horovod.spark.conf`.

    Args:
        fn: Function to call; it calls `hvd.init()` and uses `hvd.elastic.run`.
        args: Its arguments (default: none).
        kwargs: Its keyword arguments (default: none).
        num_proc: Number of ranks with which training starts (default: Spark's default parallelism,
            within min_num_proc and max_num_proc).
        min_num_proc: Smallest number of ranks (default: num_proc).
        max_num_proc: Largest number of ranks (default: num_proc).
        start_timeout: How long to wait for num_proc tasks to start, in seconds (default:
            `HOROVOD_SPARK_START_TIMEOUT`, or 600).
        elastic_timeout: How long to wait for enough ranks after a loss, in seconds (default:
            `HOROVOD_ELASTIC_TIMEOUT`, or 600).
        reset_limit: How often the ranks may form a new world before the job fails (default: no
            limit).
        env: Further environment variables for the ranks (default: none).
        stdout: Where their standard output is shown (default: that of this process).
        stderr: Where their standard error is shown (default: that of this process).
        verbose: 2 and more shows what the launcher does (default: 1).
        nics: Network interfaces to use (default: all that connect the hosts).
        prefix_output_with_timestamp: Whether lines of output begin with the time (default: no).
        min_np: Old name of min_num_proc (default: None).
        max_np: Old name of max_num_proc (default: None).

    Returns:
        The results of min_num_proc ranks that were there at the end, in the order of the ranks.

    Raises:
        RuntimeError: If the job failed.
        ValueError: If the application can never run min_num_proc tasks, or arguments are invalid.
    """
    min_num_proc = _renamed("min_np", min_np, "min_num_proc", min_num_proc)
    max_num_proc = _renamed("max_np", max_np, "max_num_proc", max_num_proc)
    cluster = Cluster.active()
    count = num_proc
    if count is None:
        count = max(min_num_proc or 1, min(cluster.parallelism(), max_num_proc or sys.maxsize))
    least, most = min_num_proc or count, max_num_proc or count
    start_timeout = _start_timeout(start_timeout)
    _check(cluster, count, env)
    with Failures(start_timeout) as failures:
        job = AgentJob(
            fn,
            args,
            kwargs,
            agents=count,
            min_num_proc=least,
            max_num_proc=most,
            reset_limit=reset_limit,
            elastic_timeout=elastic_timeout,
            # A rank that dies is started again by its agent; Spark restarts tasks that die.
            cooldown_range=_COOLDOWN,
            start_timeout=start_timeout,
            nics=nics,
            verbose=verbose > 1,
            prefix_output_with_timestamp=prefix_output_with_timestamp,
            event_log=failures.event_log,
            stdout=stdout,
            stderr=stderr,
        )
        for key in ignored(cluster.setting, cluster.version()):
            warnings.warn(
                f"this version of Spark ignores {key}; see horovod.spark.conf", stacklevel=2
            )
        plan = Plan(most, together=False, patience=0)
        return _run_agents(job, cluster, plan, failures, env, stderr)


def _start_timeout(seconds: int | None) -> int:
    return environment.spark_start_timeout() if seconds is None else seconds


def _renamed(old: str, old_value: int | None, new: str, value: int | None) -> int | None:
    if old_value is None:
        return value
    warnings.warn(f"{old} is deprecated, use {new}", DeprecationWarning, stacklevel=3)
    return old_value if value is None else value


def _check(cluster: Cluster, count: int, env: object) -> None:
    """Refuses what cannot work, before anything starts."""
    if env is not None and not isinstance(env, dict):
        raise ValueError(f"env argument must be a dict, not {type(env)}: pass dict(env)")
    most = limit(cluster.setting)
    if most is not None:
        most.refuse(count)


def _run_agents(
    job: AgentJob,
    cluster: Cluster,
    plan: Plan,
    failures: Failures,
    env: Mapping[str, str] | None,
    stderr: IO[str] | None,
) -> list[Any]:
    """Runs the job with its agents in tasks of Spark."""
    invitation = job.start()
    stage = Stage(
        cluster,
        agent_task(invitation, env or {}),
        plan,
        on_failure=job.cancel,
        stderr=stderr,
    )
    stage.start()
    failures.watch(job, stage)
    try:
        return job.wait()
    except (RankFailure, StageFailed, NotStarted):
        raise
    except RuntimeError as error:
        raise failures.explained(error, stage) from error
    finally:
        stage.end()
