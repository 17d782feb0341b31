"""The caller's end of `horovod.run`: the launcher as a child process, and its messages.

The launcher gets the function on its standard input, which stays open: when this process ends, for
any reason, the launcher notices and ends the job. It answers with frames on its standard output: a
byte for the kind, four for the rank (in an elastic job, the number of the worker), four for the
length (little-endian), and that many bytes. `crates/launch/src/caller.rs` is the other end.
"""

from __future__ import annotations

import os
import selectors
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import IO, NamedTuple, cast

_HEADER = struct.Struct("<BII")
_LENGTH = struct.Struct("<Q")
_STARTED, _STDOUT, _STDERR, _PIECE, _COMPLETE, _OVER, _WORLD, _INVITATION = range(8)
_NOBODY = 0xFFFFFFFF

# Longer than the launcher needs to end its ranks.
_PATIENCE_SECONDS = 30.0

# How much of the launcher's own standard error is kept, to explain why it ended.
_TAIL_BYTES, _TAIL_LINES = 16 << 10, 10

_RUN_AGAIN = "hint: run it again with `verbose=True`, and report this if it happens again"
_HINTS: dict[int, str] = {
    signal.SIGKILL: "hint: it was killed by hand, or memory has run out: see `dmesg`",
    signal.SIGTERM: "hint: something asked it to end, such as a batch system at its time limit",
    signal.SIGHUP: "hint: its terminal was closed; start the program with `nohup` or in `tmux`",
}


class Outcome(NamedTuple):
    """How a job ended: the exit code, the launcher's message, and the first rank that failed."""

    code: int
    text: str
    first: int | None


class Call:
    """One job: started by the constructor, done after `wait`.

    Output is shown on `streams`, by default on those of this process; `env` is the launcher's
    environment, by default that of this process.
    """

    def __init__(
        self,
        command: list[str],
        function: bytes,
        streams: tuple[IO[str] | None, IO[str] | None] = (None, None),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._streams = streams
        self._invitation: str | None = None
        self._cancelled: BaseException | None = None
        self.results: dict[int, bytearray] = {}
        # Workers whose results are complete, in order of arrival.
        self.complete: dict[int, None] = {}
        self._outcome: Outcome | None = None
        # The workers of an elastic job's last world, in rank order.
        self._world: list[int] | None = None
        self._input = bytearray()
        # Messages of the launcher before the job has started explain why it does not start.
        self._early: bytearray | None = bytearray()
        self._tail = b""
        # A separate session: Ctrl-C in a terminal goes to this process, which passes it on.
        self._launcher = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._stdin = cast("IO[bytes]", self._launcher.stdin)
        self._function: bytes | None = function

    @property
    def started(self) -> bool:
        """Whether any ranks were started."""
        return self._early is None

    def finishers(self) -> list[int]:
        """The workers of an elastic job's last world whose function has returned, in rank order."""
        world = sorted(self.complete) if self._world is None else self._world
        returned = {worker for worker in self.complete if self.results[worker][:1] == b"v"}
        return [worker for worker in world if worker in returned]

    def wait(self) -> Outcome:
        """Shows the output while the job runs and returns how it ended.

        An interrupt ends the job, and a second one kills it at once; both are passed on.
        """
        try:
            self._send()
            self._listen()
        except BaseException:
            self._stop()
            raise
        finally:
            self._close()
        if self._cancelled is not None:
            raise self._cancelled
        return self._outcome or self._cut_short()

    def invitation(self) -> str | None:
        """Waits until the launcher listens for agents; None if it ended before."""
        try:
            self._send()
            self._listen(until_invited=True)
        except BaseException:
            self._stop()
            self._close()
            raise
        return self._invitation

    def cancel(self, error: BaseException) -> None:
        """Ends the job, from any thread; `wait` then raises this error."""
        self._cancelled = self._cancelled or error
        with suppress(ProcessLookupError):
            self._launcher.send_signal(signal.SIGINT)

    def _send(self) -> None:
        """Sends the function, once."""
        function, self._function = self._function, None
        if function is not None:
            with suppress(BrokenPipeError):
                self._stdin.write(_LENGTH.pack(len(function)))
                self._stdin.write(function)
                self._stdin.flush()

    def _cut_short(self) -> Outcome:
        """The outcome if the launcher ended without reporting one."""
        code = self._launcher.returncode
        said = (self._tail if self._early is None else bytes(self._early)).decode(errors="replace")
        if code > 0 and not self.started and said.strip():
            return Outcome(code, said, None)
        how = (
            f"was killed by signal {-code} ({_signal_name(-code)})"
            if code < 0
            else (f"ended with code {code} without saying how the job went,")
        )
        lines = said.strip().splitlines()[-_TAIL_LINES:]
        last = ["its last lines were:", *(f"  {line}" for line in lines)] if lines else []
        when = "while the job ran" if self.started else "before any rank was started"
        text = [
            f"the launcher, `horovodrun` (process {self._launcher.pid}), {how} {when}",
            *last,
            _HINTS.get(-code, _RUN_AGAIN),
        ]
        return Outcome(code if code > 0 else 128 - code, "\n".join(text), None)

    def _listen(self, until_invited: bool = False) -> None:
        with selectors.DefaultSelector() as selector:
            for pipe in (self._launcher.stdout, self._launcher.stderr):
                selector.register(cast("IO[bytes]", pipe), selectors.EVENT_READ)
            while selector.get_map() and not (until_invited and self._invitation):
                for key, _ in selector.select():
                    data = os.read(key.fd, 1 << 20)
                    if not data:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is self._launcher.stdout:
                        self._take(data)
                    else:
                        self._complain(data)
        if not (until_invited and self._invitation):
            self._launcher.wait()

    def _take(self, data: bytes) -> None:
        self._input += data
        for kind, rank, content in self._frames():
            if kind == _STARTED:
                early, self._early = self._early, None
                self._complain(bytes(early or b""))
            elif kind in (_STDOUT, _STDERR):
                self._show(kind, content)
            elif kind == _PIECE and rank not in self.complete:
                self.results.setdefault(rank, bytearray()).extend(content)
            elif kind == _COMPLETE:
                self.complete[rank] = None
            elif kind == _WORLD:
                self._world = list(struct.unpack(f"<{len(content) // 4}I", content))
            elif kind == _INVITATION:
                self._invitation = content.decode()
            elif kind == _OVER:
                first = None if rank == _NOBODY else rank
                self._outcome = Outcome(content[0], content[1:].decode(errors="replace"), first)

    def _frames(self) -> Iterator[tuple[int, int, bytes]]:
        at = 0
        while len(self._input) >= at + _HEADER.size:
            kind, rank, length = _HEADER.unpack_from(self._input, at)
            end = at + _HEADER.size + length
            if len(self._input) < end:
                break
            yield kind, rank, bytes(self._input[at + _HEADER.size : end])
            at = end
        del self._input[:at]

    def _complain(self, data: bytes) -> None:
        if self._early is not None:
            self._early += data
        elif data:
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
            self._show(_STDERR, data)

    def _show(self, kind: int, data: bytes) -> None:
        stdout, stderr = self._streams
        stream = (stdout or sys.stdout) if kind == _STDOUT else (stderr or sys.stderr)
        # In a notebook there is no binary stream, and a closed screen must not end the job.
        with suppress(OSError, ValueError):
            stream.write(data.decode(errors="replace"))
            stream.flush()

    def _stop(self) -> None:
        """Interrupts the job and waits until nothing of it is left."""
        while self._launcher.poll() is None:
            with suppress(ProcessLookupError):
                self._launcher.send_signal(signal.SIGINT)
            try:
                self._drain()
                self._launcher.wait(_PATIENCE_SECONDS)
            except KeyboardInterrupt:
                continue
            except subprocess.TimeoutExpired:
                break
        if self._launcher.poll() is None:
            self._launcher.kill()
            self._launcher.wait()

    def _drain(self) -> None:
        # Whatever failed here, the launcher must not wait for a reader.
        with suppress(Exception):
            self._listen()

    def _close(self) -> None:
        for pipe in (self._launcher.stdin, self._launcher.stdout, self._launcher.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
