"""The arguments of a job started from Python, and the equivalent options of the launcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class _HorovodArgs:
    """The arguments of a job, with Horovod's names."""

    def __init__(self) -> None:
        self.num_proc: int | None = 1
        self.min_num_proc: int | None = None
        self.max_num_proc: int | None = None
        self.slots: int | None = None
        self.reset_limit: int | None = None
        self.cooldown_range: tuple[int, int] | None = None
        self.elastic_timeout: int | None = None
        self.host_discovery_script: str | None = None
        self.hosts: str | None = None
        self.hostfile: str | None = None
        self.agents: int | None = None
        self.listen: str | None = None
        self.key_file: str | None = None
        self.nics: list[str] = []
        self.port_range: str | None = None
        self.workdir: str | None = None
        self.start_timeout: int | None = None
        self.ssh_port: int | None = None
        self.ssh_identity_file: str | None = None
        self.reach: str | None = None
        self.agent_port: int | None = None
        self.agent_key_file: str | None = None
        self.rsh: str | None = None
        self.disable_cache: bool | None = None
        self.output_filename: str | None = None
        self.event_log: str | None = None
        self.gpus_per_rank: int | None = None
        self.prefix_output_with_timestamp: bool | None = None
        self.tty: str | None = None
        self.ranks: str | None = None
        self.verbose: int | None = None
        self.use_gloo: bool | None = None
        self.use_mpi: bool | None = None
        self.use_jsrun: bool | None = None
        self.mpi_args: str | None = None
        self.tcp_flag: bool | None = None
        self.binding_args: str | None = None
        self.config_file: str | None = None
        self.check_build: bool | None = None
        # Arguments for the ranks only; `horovod.run` leaves these to their environment.
        self.fusion_threshold_mb: int | None = None
        self.cycle_time_ms: float | None = None
        self.cache_capacity: int | None = None
        self.hierarchical_allreduce: bool | None = None
        self.hierarchical_allgather: bool | None = None
        self.torus_allreduce: bool | None = None
        self.autotune: bool | None = None
        self.autotune_log_file: str | None = None
        self.autotune_warmup_samples: int | None = None
        self.autotune_steps_per_sample: int | None = None
        self.autotune_bayes_opt_max_samples: int | None = None
        self.autotune_gaussian_process_noise: float | None = None
        self.timeline_filename: str | None = None
        self.timeline_mark_cycles: bool | None = None
        self.no_stall_check: bool | None = None
        self.stall_check_warning_time_seconds: int | None = None
        self.stall_check_shutdown_time_seconds: int | None = None
        self.log_level: str | None = None
        self.log_with_timestamp: bool | None = None
        self.mpi_threads_disable: bool | None = None
        self.num_nccl_streams: int | None = None
        self.thread_affinity: int | None = None
        self.gloo_timeout_seconds: int | None = None
        self.executable: str | None = None
        self.command: list[str] = []
        self.run_func: Callable[..., Any] | None = None

    def options(self) -> list[str]:
        """The equivalent options of `horovodrun`; raises Horovod's errors for invalid
        combinations."""
        self._check()
        pairs = [
            ("--num-proc", self._initial()),
            ("--min-num-proc", self.min_num_proc),
            ("--max-num-proc", self.max_num_proc),
            ("--slots-per-host", self.slots),
            ("--reset-limit", self.reset_limit),
            ("--elastic-timeout", self.elastic_timeout),
            ("--host-discovery-script", self.host_discovery_script),
            ("--hosts", self.hosts),
            ("--hostfile", self.hostfile),
            ("--agents", self.agents),
            ("--listen", self.listen),
            ("--key-file", self.key_file),
            ("--network-interfaces", ",".join(self.nics) or None),
            ("--port-range", self.port_range),
            ("--workdir", self.workdir),
            ("--start-timeout", self.start_timeout),
            ("--ssh-port", self.ssh_port),
            ("--ssh-identity-file", self.ssh_identity_file),
            ("--reach", self.reach),
            ("--agent-port", self.agent_port),
            ("--agent-key-file", self.agent_key_file),
            ("--rsh", self.rsh),
            ("--output-filename", self.output_filename),
            ("--event-log", self.event_log),
            ("--gpus-per-rank", self.gpus_per_rank),
            ("--tty", self.tty),
            ("--ranks", self.ranks),
            ("--mpi-args", self.mpi_args),
        ]
        options = [f"{name}={value}" for name, value in pairs if value is not None]
        if self.cooldown_range is not None:
            least, most = self.cooldown_range
            options += [f"--blacklist-cooldown-range={least}", str(most)]
        flags = [
            ("--disable-cache", self.disable_cache),
            ("--prefix-output-with-timestamp", self.prefix_output_with_timestamp),
            ("--verbose", self.verbose),
            ("--gloo", self.use_gloo),
            ("--mpi", self.use_mpi),
        ]
        return options + [name for name, wanted in flags if wanted]

    @property
    def elastic(self) -> bool:
        """Whether the job is elastic."""
        return self.min_num_proc is not None or self.host_discovery_script is not None

    def fewest(self) -> int:
        """The smallest number of results."""
        return self.min_num_proc or self.num_proc or 1

    def _initial(self) -> int | None:
        # One is also the default.
        if self.min_num_proc is not None and self.num_proc == 1:
            return None
        return self.num_proc

    def _check(self) -> None:
        if self.hosts is not None and self.hostfile is not None:
            raise ValueError("Argument hosts and hostfile only allow one provided.")
        if self.host_discovery_script is not None and (self.hosts or self.hostfile) is not None:
            raise ValueError(
                "Argument host_discovery_script and hosts or hostfile only allow one provided."
            )
        named = (self.hosts, self.hostfile, self.host_discovery_script)
        if self.agents is not None and any(hosts is not None for hosts in named):
            raise ValueError(
                "Argument agents and hosts, hostfile or host_discovery_script only allow one "
                "provided."
            )
        if self.use_gloo and self.use_mpi:
            raise ValueError("Argument use_gloo and use_mpi only allow one set True.")
