"""Starts MPI ranks next to those of Ronde, with settings that suit one host."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from typing import IO

from horovod._bench.channel import Channel

START_SECONDS = 30
# An MPI rank is not a Ronde rank and needs none of its secrets; `RONDE_JOB` is kept because the
# launcher uses it to find processes that must not be left behind.
OURS = ("HOROVOD_", "RONDE_RENDEZVOUS", "RONDE_JOB_KEY")
TORCHS = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


class Mpirun:
    """MPI's launcher and the channels to its ranks."""

    def __init__(self, size: int, server: socket.socket, path: str) -> None:
        launcher = shutil.which("mpirun")
        if launcher is None:
            raise OSError("there is no `mpirun` on the PATH; install Open MPI or MPICH")
        version = subprocess.run(
            [launcher, "--version"], capture_output=True, text=True, check=False
        )
        self._is_open_mpi = "Open MPI" in version.stdout or "OpenRTE" in version.stdout
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as this
        self._process = subprocess.Popen(
            [launcher, *self._options(size), sys.executable, "-m", "horovod._bench.mpi", path],
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            env=self._environment(),
        )
        try:
            self.channels, self.version = self._meet(size, server)
        except BaseException:
            self.end()
            raise

    def _options(self, size: int) -> list[str]:
        if not self._is_open_mpi:
            return ["-n", str(size)]
        # More ranks than cores are allowed, and then they yield. Ranks are not bound, like Ronde's.
        return ["-np", str(size), "--oversubscribe", "--bind-to", "none"]

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(OURS) and name not in TORCHS
        }
        if self._is_open_mpi and os.geteuid() == 0:
            kept.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        return kept

    def _meet(self, size: int, server: socket.socket) -> tuple[list[Channel], str]:
        channels: dict[int, Channel] = {}
        version = ""
        end = time.monotonic() + START_SECONDS
        server.settimeout(0.2)
        while len(channels) < size:
            if self._process.poll() is not None:
                raise OSError(
                    f"mpirun ended with code {self._process.returncode}: {self.last_lines()}"
                )
            if time.monotonic() > end:
                raise OSError(
                    f"the ranks did not connect within {START_SECONDS} s: {self.last_lines()}"
                )
            try:
                connection, _ = server.accept()
            except socket.timeout:
                # Before Python 3.10 it is not a `TimeoutError`.
                continue
            connection.settimeout(None)
            channel = Channel(connection)
            hello = channel.receive()
            if hello["size"] != size:
                raise OSError("`mpirun` does not match the MPI library that was found")
            channels[hello["rank"]] = channel
            version = hello["version"]
        return [channels[rank] for rank in range(size)], version

    def last_lines(self) -> str:
        """The last lines of output of the launcher and its ranks."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        kept = [line.strip() for line in lines if line.strip(" -\t")]
        return " / ".join(kept[-4:]) or "it printed nothing"

    def end(self) -> None:
        """Waits briefly for the processes to end, then kills them."""
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
