"""Starting jobs from Python: `horovod.run(func, num_proc=4)`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod.runner.arguments import _HorovodArgs
from horovod.runner.caller import Call
from horovod.runner.program import horovodrun
from horovod.runner.remote_call import finish, pickled

__all__ = ["run"]


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[int, int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    elastic_timeout: int | None = None,
    agents: int | None = None,
    listen: str | None = None,
    key_file: str | None = None,
    event_log: str | None = None,
    gpus_per_rank: int | None = None,
) -> list[Any]:
    """Call a function on several ranks and return what it returned on each.

    Starts a job as `horovodrun` does. Output of the ranks appears while they run. Functions and
    results are pickled with cloudpickle and sent encrypted. An interrupt ends the job.

    With `min_num_proc` or `host_discovery_script` the job is elastic: ranks may come and go, every
    process that joins calls the function, and `min_num_proc` results of those that were there at
    the end are returned.

    Args:
        func: Function to call; it calls `hvd.init()` itself.
        args: Its arguments (default: none).
        kwargs: Its keyword arguments (default: none).
        num_proc: Number of ranks (default: 1).
        min_num_proc: Smallest number of ranks of an elastic job (default: None).
        max_num_proc: Largest number of ranks of an elastic job (default: None).
        slots: Slots per host, for a discovery script that prints only host names (default: None).
        reset_limit: How often an elastic job may form a new world before it fails (default: no
            limit).
        cooldown_range: Shortest and longest time in seconds for which a failed host is left out; it
            doubles with each failure (default: None, a failed host is not used again).
        hosts: Hosts and slots, such as `node-a:4,node-b:4` (default: this host).
        hostfile: File with lines such as `node-a slots=4` (default: None).
        host_discovery_script: Command that prints the available hosts, one `node-a:4` per line
            (default: None).
        start_timeout: How long to wait for all hosts to respond, in seconds (default: None, that of
            `horovodrun`).
        ssh_port: Port of sshd on the hosts (default: None).
        ssh_identity_file: Private key for ssh (default: None).
        disable_cache: Accepted for compatibility with Horovod: nothing about hosts is remembered
            between jobs (default: None).
        output_filename: Directory for the output of the ranks: `rank.N/stdout` and `rank.N/stderr`
            (default: None).
        verbose: 1 or more to print each step of the launcher to standard error (default: None).
        use_gloo: Accepted for compatibility with Horovod (default: None).
        use_mpi: Whether `mpirun` starts the ranks (default: None).
        mpi_args: Further arguments of `mpirun` (default: None).
        network_interface: Deprecated, use `network_interfaces`.
        network_interfaces: Network interfaces that ranks may use: a sequence, or names separated by
            commas (default: all).
        executable: Python of the ranks (default: that of this process).
        np: Deprecated, use `num_proc`.
        min_np: Deprecated, use `min_num_proc`.
        max_np: Deprecated, use `max_num_proc`.
        elastic_timeout: Seconds an elastic job waits for enough slots after a change (default:
            None, which means 600).
        agents: Number of agents (`ronde agent --join`) that connect, instead of hosts (default:
            None).
        listen: Address and port to which agents connect (default: None).
        key_file: File with the key that the agents hold (default: None; the variable
            `RONDE_JOB_KEY` works too).
        event_log: File for the events of the job, as lines of JSON (default: None).
        gpus_per_rank: Number of GPUs of its host that each rank sees (default: None, which means
            all).

    Returns:
        What the function returned, in the order of the ranks.

    Raises:
        TypeError: If `func` cannot be called, or `args` is not a sequence.
        ValueError: If arguments are invalid or contradict each other.
        RuntimeError: If a rank failed or died; the text says which, where and how. If it raised an
            exception, the error is also of that exception's class, with the rank's traceback as its
            cause.

    Example:
        ```python
        import horovod


        def train(scale):
            import horovod.torch as hvd

            hvd.init()
            return scale * hvd.rank()


        if __name__ == "__main__":
            print(horovod.run(train, args=(10,), num_proc=2))  # [0, 10]
        ```
    """
    wanted = _HorovodArgs()
    wanted.num_proc = _renamed("num_proc", num_proc, "np", np)
    wanted.min_num_proc = _renamed("min_num_proc", min_num_proc, "min_np", min_np)
    wanted.max_num_proc = _renamed("max_num_proc", max_num_proc, "max_np", max_np)
    wanted.slots, wanted.reset_limit, wanted.cooldown_range = slots, reset_limit, cooldown_range
    wanted.elastic_timeout = elastic_timeout
    wanted.hosts, wanted.hostfile = hosts, hostfile
    wanted.agents, wanted.listen, wanted.key_file = agents, listen, key_file
    wanted.host_discovery_script = host_discovery_script
    wanted.start_timeout = start_timeout
    wanted.ssh_port, wanted.ssh_identity_file = ssh_port, ssh_identity_file
    wanted.disable_cache, wanted.output_filename = disable_cache, output_filename
    wanted.event_log, wanted.gpus_per_rank = event_log, gpus_per_rank
    wanted.verbose, wanted.use_gloo, wanted.use_mpi = verbose, use_gloo, use_mpi
    wanted.mpi_args = mpi_args
    wanted.nics = _interfaces(network_interface, network_interfaces)
    wanted.executable = executable or sys.executable
    wanted.command = [wanted.executable, "-m", "horovod.runner.run_task"]
    wanted.run_func = func
    options = wanted.options()
    function = pickled(func, args, kwargs)
    call = Call([horovodrun(), "__ronde-called", *options, *wanted.command], function)
    return finish(call, wanted)


def _renamed(name: str, value: int | None, old: str, given: int | None) -> int | None:
    if given is None:
        return value
    warnings.warn(f"{old} is deprecated, use {name} instead", DeprecationWarning, stacklevel=3)
    return given


def _interfaces(one: str | None, several: str | Sequence[str] | None) -> list[str]:
    if one is not None:
        warnings.warn(
            "network_interface is deprecated, use network_interfaces instead",
            DeprecationWarning,
            stacklevel=3,
        )
    names = several.split(",") if isinstance(several, str) else list(several or ())
    return [*(one.split(",") if one else ()), *names]
