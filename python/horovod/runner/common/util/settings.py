"""Settings of a job, as programs pass them around. Jobs are started with `horovod.run`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from horovod.runner.common.util.timeout import Timeout


class BaseSettings:
    """The settings of every kind of job."""

    def __init__(
        self,
        num_proc: int | None = None,
        verbose: int = 0,
        ssh_port: int | None = None,
        ssh_identity_file: str | None = None,
        extra_mpi_args: str | None = None,
        tcp_flag: bool | None = None,
        binding_args: str | None = None,
        key: bytes | None = None,
        start_timeout: Timeout | None = None,
        output_filename: str | None = None,
        run_func_mode: bool | None = None,
        nics: Collection[str] | None = None,
        elastic: bool = False,
        prefix_output_with_timestamp: bool = False,
    ) -> None:
        self.num_proc = num_proc
        self.verbose = verbose
        self.ssh_port = ssh_port
        self.ssh_identity_file = ssh_identity_file
        self.extra_mpi_args = extra_mpi_args
        self.tcp_flag = tcp_flag
        self.binding_args = binding_args
        self.key = key
        self.start_timeout = start_timeout
        self.output_filename = output_filename
        self.run_func_mode = run_func_mode
        self.nics = nics
        self.elastic = elastic
        self.prefix_output_with_timestamp = prefix_output_with_timestamp


class Settings(BaseSettings):
    """A job on hosts, `node-a:4,node-b:4`."""

    def __init__(
        self, num_hosts: int | None = None, hosts: str | None = None, **others: Any
    ) -> None:
        super().__init__(**others)
        self.num_hosts = num_hosts
        self.hosts = hosts
