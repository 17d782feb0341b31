"""Shell commands of which nothing is left behind.

The command leads a session of its own and is killed when this process dies. When an event asks for
its end, all of the session is asked to end, and killed after a while.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO, Any

from horovod.runner.program import horovodrun
from horovod.runner.util.threads import in_thread

GRACEFUL_TERMINATION_TIME_S = 5

# How often events are looked at.
_CHECK_SECONDS = 0.05


def execute(
    command: str,
    env: dict[str, str] | None = None,
    stdout: IO[Any] | None = None,
    stderr: IO[Any] | None = None,
    index: int | None = None,
    events: Sequence[threading.Event] | None = None,
    prefix_output_with_timestamp: bool = False,
) -> int:
    """Runs a command in a shell and gives its exit code, 128 and more if a signal has ended it.

    Output goes to the streams, or to this process's, with `[index]<stdout>:` in front of each line
    if there is an index. When one of the events is set the command ends.
    """
    if env is not None and not isinstance(env, dict):
        raise TypeError(f"env argument must be a dict, not {type(env)}: give it as dict(env)")
    # The shim makes a session, and has the shell killed if this thread's process dies.
    process = subprocess.Popen(
        [horovodrun(), "__ronde-shim", str(os.getpid()), "/bin/sh", "-c", command],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    streams = [(process.stdout, stdout or sys.stdout, "stdout")]
    streams.append((process.stderr, stderr or sys.stderr, "stderr"))
    readers = []
    for source, target, name in streams:
        prefix = None if index is None else f"[{index}]<{name}>:"
        arguments = (source, target, prefix, prefix_output_with_timestamp)
        readers.append(in_thread(_forward, arguments, silent=True))
    try:
        _wait(process, events or ())
    finally:
        _end(process)
    for reader in readers:
        reader.join(GRACEFUL_TERMINATION_TIME_S)
    code = process.returncode
    return code if code >= 0 else 128 - code


def _wait(process: subprocess.Popen[bytes], events: Sequence[threading.Event]) -> None:
    """Waits until the command has ended, or is to end."""
    while not _has_ended(process, blocking=not events):
        if any(event.is_set() for event in events):
            return
        time.sleep(_CHECK_SECONDS)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends whatever of the command's session is left."""
    patience = time.monotonic() + GRACEFUL_TERMINATION_TIME_S
    if not _has_ended(process):
        os.killpg(process.pid, signal.SIGTERM)
    while not _has_ended(process) and time.monotonic() < patience:
        time.sleep(_CHECK_SECONDS)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _has_ended(process: subprocess.Popen[bytes], blocking: bool = False) -> bool:
    # The shell is left unburied, so that the number of its group stays its own.
    how = os.WEXITED | os.WNOWAIT | (0 if blocking else os.WNOHANG)
    return os.waitid(os.P_PID, process.pid, how) is not None


def _forward(source: IO[bytes], target: IO[Any], prefix: str | None, timestamp: bool) -> None:
    for line in iter(source.readline, b""):
        stamp = time.asctime() if timestamp and prefix is not None else ""
        target.write(f"{stamp}{prefix or ''}{line.decode(errors='replace')}")
        target.flush()
