"""What a job may be asked for from Python, and the launcher's options that say the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ELASTIC = (
    "min_num_proc",
    "max_num_proc",
    "slots",
    "reset_limit",
    "cooldown_range",
    "host_discovery_script",
)


class _HorovodArgs:
    """The arguments of a job, by the names that Horovod's own have."""

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
        self.nics: list[str] = []
        self.start_timeout: int | None = None
        self.ssh_port: int | None = None
        self.ssh_identity_file: str | None = None
        self.disable_cache: bool | None = None
        self.output_filename: str | None = None
        self.prefix_output_with_timestamp: bool | None = None
        self.verbose: int | None = None
        self.use_gloo: bool | None = None
        self.use_mpi: bool | None = None
        self.use_jsrun: bool | None = None
        self.mpi_args: str | None = None
        self.tcp_flag: bool | None = None
        self.binding_args: str | None = None
        self.config_file: str | None = None
        self.log_level: str | None = None
        self.check_build: bool | None = None
        self.executable: str | None = None
        self.command: list[str] = []
        self.run_func: Callable[..., Any] | None = None

    def options(self) -> list[str]:
        """The same for `horovodrun`; raises what Horovod raises for what cannot be."""
        self._check()
        pairs = [
            ("--num-proc", self.num_proc),
            ("--hosts", self.hosts),
            ("--hostfile", self.hostfile),
            ("--network-interfaces", ",".join(self.nics) or None),
            ("--start-timeout", self.start_timeout),
            ("--ssh-port", self.ssh_port),
            ("--ssh-identity-file", self.ssh_identity_file),
            ("--output-filename", self.output_filename),
        ]
        options = [f"{name}={value}" for name, value in pairs if value is not None]
        flags = [
            ("--disable-cache", self.disable_cache),
            ("--verbose", self.verbose),
            ("--gloo", self.use_gloo),
        ]
        return options + [name for name, wanted in flags if wanted]

    def _check(self) -> None:
        if self.hosts is not None and self.hostfile is not None:
            raise ValueError("Argument hosts and hostfile only allow one provided.")
        if self.use_gloo and self.use_mpi:
            raise ValueError("Argument use_gloo and use_mpi only allow one set True.")
        elastic = [name for name in _ELASTIC if getattr(self, name) is not None]
        if elastic:
            raise NotImplementedError(
                f"{', '.join(elastic)}: elastic jobs are not in this release yet; see the table in "
                "README.md. Give num_proc and hosts for a job of fixed size."
            )
        if self.use_mpi or self.mpi_args is not None:
            raise NotImplementedError(
                "horovod.run starts its ranks without MPI; leave use_mpi and mpi_args out, or "
                "start a script with `mpirun`"
            )
