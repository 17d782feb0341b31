"""Jobs on machines that another system manages: its tasks carry agents that connect to the job.

Spark, Ray and their like start processes themselves. `AgentJob` starts the launcher, which listens;
its `Invitation` travels over the engine's own channel to the tasks, and an `Agent` in each offers
slots. From there on it is a job like any other: `docs/design/0017-engines.md`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, NamedTuple, cast

from horovod.common import environment
from horovod.runner.arguments import _HorovodArgs
from horovod.runner.caller import Call
from horovod.runner.program import horovodrun, ronde
from horovod.runner.remote_call import failure, finish, pickled

# Agents may have another Python at another place, and start in another directory.
_COMMAND = 'cd "$RONDE_AGENT_DIRECTORY" && exec "${RONDE_AGENT_PYTHON}" -m horovod.runner.run_task'
_LAST_BYTES, _LAST_LINES = 8192, 10
_PATIENCE_SECONDS = 30.0


class Invitation(NamedTuple):
    """Where agents connect to a job, and its key: a secret. It can be pickled."""

    addresses: tuple[str, ...]
    key: str

    def __repr__(self) -> str:
        # The key must not reach a log by accident.
        return f"Invitation(addresses={self.addresses!r})"


class AgentJob:
    """A job whose agents connect by themselves, started from Python.

    Its ranks get the environment, the directory and, unless `executable` is given, the Python of
    the process that starts their agent; of this process they get only the settings of Horovod and
    Ronde.

    Args:
        func: Function to call on every rank; it calls `hvd.init()` itself.
        args: Its arguments.
        kwargs: Its keyword arguments.
        agents: Number of agents to wait for before the job starts.
        stdout: Where the ranks' standard output is shown (default: this process's).
        stderr: Where their standard error is shown (default: this process's).

    The other arguments are those of `horovod.run`.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        agents: int,
        num_proc: int | None = None,
        min_num_proc: int | None = None,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: int | None = None,
        cooldown_range: tuple[int, int] | None = None,
        start_timeout: int | None = None,
        nics: Sequence[str] | None = None,
        verbose: int | None = None,
        prefix_output_with_timestamp: bool | None = None,
        output_filename: str | None = None,
        event_log: str | None = None,
        executable: str | None = None,
        stdout: IO[str] | None = None,
        stderr: IO[str] | None = None,
    ) -> None:
        wanted = _HorovodArgs()
        wanted.agents, wanted.num_proc = agents, num_proc or agents
        wanted.min_num_proc, wanted.max_num_proc = min_num_proc, max_num_proc
        wanted.reset_limit, wanted.elastic_timeout = reset_limit, elastic_timeout
        wanted.cooldown_range, wanted.start_timeout = cooldown_range, start_timeout
        wanted.nics, wanted.verbose = list(nics or ()), verbose
        wanted.prefix_output_with_timestamp = prefix_output_with_timestamp
        wanted.output_filename, wanted.event_log = output_filename, event_log
        # A directory that every machine has; the command changes to the agent's.
        wanted.workdir = "/"
        wanted.command = ["/bin/sh", "-c", _COMMAND]
        if executable is not None:
            wanted.command = [executable, "-m", "horovod.runner.run_task"]
        self._wanted = wanted
        self._function = pickled(func, args, kwargs)
        self._streams = (stdout, stderr)
        self._call: Call | None = None

    def start(self) -> Invitation:
        """Starts the launcher, and returns as soon as agents can connect to it.

        Raises:
            ValueError: If arguments are invalid or contradict each other.
            RuntimeError: If the launcher cannot listen.
        """
        command = [horovodrun(), "__ronde-inviting", *self._wanted.options(), *self._wanted.command]
        self._call = Call(command, self._function, self._streams, environment.for_launcher())
        text = self._call.invitation()
        if text is None:
            raise failure(self._call, self._call.wait(), self._wanted)
        _, key, addresses = text.splitlines()
        return Invitation(tuple(addresses.split()), key)

    def wait(self, all_results: bool = False) -> list[Any]:
        """Shows the output while the job runs, and returns the results in the order of the ranks.

        Args:
            all_results: Whether an elastic job returns the results of all ranks that were there at
                the end, and not only `min_num_proc` (default: False).

        Raises:
            RuntimeError: If the job failed, as with `horovod.run`; or what `cancel` was given.
        """
        if self._call is None:
            raise RuntimeError("this job has not been started; call start() first")
        return finish(self._call, self._wanted, all_results)

    def cancel(self, error: BaseException) -> None:
        """Ends the job, from any thread; `wait` then raises this error."""
        if self._call is not None:
            self._call.cancel(error)


class Agent:
    """`ronde agent --join` as a child of this process; it and its ranks end with this process.

    Args:
        invitation: The invitation to the job.
        name: The name of this host in the job (default: its host name).
        slots: Number of ranks that it offers to run.
        shared_host: The machine, if several agents of the job are on it and their ranks are to be
            numbered together (default: None, every agent is a host of its own).
        env: Further variables for its ranks.
        timeout: How long to try to connect, in seconds.
    """

    def __init__(
        self,
        invitation: Invitation,
        *,
        name: str | None = None,
        slots: int = 1,
        shared_host: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 600,
    ) -> None:
        reading, writing = os.pipe()
        command = [ronde(), "agent", "--join", ",".join(invitation.addresses), "--with-stdin"]
        command += ["--key-fd", str(reading), "--slots", str(slots)]
        command += ["--timeout", str(max(1, round(timeout)))]
        for option, value in (("--name", name), ("--shared-host", shared_host)):
            command += [option, value] if value is not None else []
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as this
        try:
            self._process = subprocess.Popen(
                command,
                env=environment.for_agent(env or {}, sys.executable),
                stdin=subprocess.PIPE,
                stdout=self._said,
                stderr=self._said,
                pass_fds=[reading],
                start_new_session=True,
            )
            os.write(writing, invitation.key.encode())
        finally:
            os.close(reading)
            os.close(writing)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the job has ended, or was told to leave.

        Args:
            timeout: How long to wait, in seconds (default: None, no limit).

        Raises:
            RuntimeError: If the agent failed; the text has its last lines.
            subprocess.TimeoutExpired: If it is still running after the time limit.
        """
        code = self._process.wait(timeout)
        said = self._last_lines()
        self._close()
        if code not in (0, 128 + signal.SIGTERM):
            raise RuntimeError(f"the agent failed with code {code}:\n{said}")

    def stop(self) -> None:
        """Asks the agent to leave: ranks of an elastic job leave at their next commit."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the agent and its ranks now."""
        if self._process.poll() is None:
            cast("IO[bytes]", self._process.stdin).close()
            try:
                self._process.wait(_PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._close()

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def _last_lines(self) -> str:
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - _LAST_BYTES))
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return "\n".join(lines[-_LAST_LINES:])

    def _close(self) -> None:
        for file in (self._process.stdin, self._said):
            if file is not None:
                file.close()
