"""Shell commands that leave no processes behind.

The command leads its own session and is killed when this process dies. When an event requests it,
the whole session is asked to end, and killed after a while.
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

# How often events are checked.
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
    """Runs a command in a shell and returns its exit code, 128 and above if a signal ended it.

    Output goes to the given streams, or to those of this process, with `[index]<stdout>:` in front
    of each line if there is an index. The command ends when one of the events is set.
    """
    if env is not None and not isinstance(env, dict):
        raise TypeError(f"env argument must be a dict, not {type(env)}: pass dict(env)")
    # The shim creates a session, and has the shell killed if this process dies.
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
    """Waits until the command has ended, or should end."""
    while not _has_ended(process, blocking=not events):
        if any(event.is_set() for event in events):
            return
        time.sleep(_CHECK_SECONDS)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of the command's session."""
    patience = time.monotonic() + GRACEFUL_TERMINATION_TIME_S
    if not _has_ended(process):
        os.killpg(process.pid, signal.SIGTERM)
    while not _has_ended(process) and time.monotonic() < patience:
        time.sleep(_CHECK_SECONDS)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _has_ended(process: subprocess.Popen[bytes], blocking: bool = False) -> bool:
    # The shell is not reaped, so that its process group id is not reused.
    how = os.WEXITED | os.WNOWAIT | (0 if blocking else os.WNOHANG)
    return os.waitid(os.P_PID, process.pid, how) is not None


def _forward(source: IO[bytes], target: IO[Any], prefix: str | None, timestamp: bool) -> None:
    for line in iter(source.readline, b""):
        stamp = time.asctime() if timestamp and prefix is not None else ""
        target.write(f"{stamp}{prefix or ''}{line.decode(errors='replace')}")
        target.flush()
