"""A command on a real pseudo-terminal, and what a terminal would show of its output."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import time

COMMAND = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]")


class Terminal:
    """The features of a terminal that progress bars use. Rows never scroll away."""

    def __init__(self, columns: int = 80) -> None:
        self.columns = columns
        self.lines: list[list[str]] = [[]]
        self.row = self.column = 0
        self.rest = ""

    def rows(self) -> list[str]:
        """The text of each row."""
        rows = ["".join(row).rstrip() for row in self.lines]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def feed(self, text: str) -> Terminal:
        """Writes text, which may end in the middle of an escape sequence."""
        text, self.rest, at = self.rest + text, "", 0
        while at < len(text):
            letter = text[at]
            if letter == "\x1b":
                found = COMMAND.match(text, at)
                if not found:
                    self.rest = text[at:]
                    return self
                self.command(*found.groups())
                at = found.end()
                continue
            at += 1
            if letter == "\n":
                self.down()
            elif letter == "\r":
                self.column = 0
            elif letter == "\b":
                self.column = max(self.column - 1, 0)
            elif letter >= " ":
                self.put(letter)
        return self

    def down(self) -> None:
        self.row, self.column = self.row + 1, 0
        if self.row == len(self.lines):
            self.lines.append([])

    def put(self, letter: str) -> None:
        if self.column == self.columns:
            self.down()
        line = self.lines[self.row]
        line.extend(" " * (self.column + 1 - len(line)))
        line[self.column] = letter
        self.column += 1

    def command(self, parameters: str | None, name: str | None) -> None:
        number = int(parameters) if parameters and parameters.isdigit() else None
        if name == "A":
            assert self.row >= (number or 1), "the cursor went above the first line"
            self.row -= number or 1
        elif name == "B":
            self.row = min(self.row + (number or 1), len(self.lines) - 1)
        elif name == "C":
            self.column += number or 1
        elif name == "G":
            self.column = (number or 1) - 1
        elif name == "K" and number == 2:
            self.lines[self.row] = []
        elif name in ("K", "J"):
            assert not number, f"\\x1b[{parameters}{name}"
            self.lines[self.row] = self.lines[self.row][: self.column]
            if name == "J":
                del self.lines[self.row + 1 :]
        else:
            # Colors and the visibility of the cursor change no text.
            assert name in ("m", "h", "l", None), f"\\x1b[{parameters}{name}"


def resize(descriptor: int, columns: int) -> None:
    """Sets the width of a terminal."""
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


class Job:
    """A command on its own terminal."""

    def __init__(self, *command: object, columns: int = 80, **variables: str) -> None:
        self.ours, theirs = pty.openpty()
        resize(theirs, columns)
        # Each of these would override the detection of colors or width.
        deciding = ("NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI", "COLUMNS", "LINES")
        env = {name: value for name, value in os.environ.items() if name not in deciding}
        env.update({"TERM": "xterm", **variables})
        words = [str(word) for word in command]
        # As the leader of a session with this terminal, it gets SIGWINCH for a new size.
        lead = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        lead += "os.execvp(sys.argv[1], sys.argv[1:])"
        self.process = subprocess.Popen(
            ["python3", "-c", lead, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=env,
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""

    def read(self) -> str:
        """Reads the next piece; returns an empty string at the end."""
        try:
            piece = os.read(self.ours, 65536)
        except OSError:  # the last writer has closed it
            piece = b""
        self.text += piece.decode(errors="replace").replace("\r\n", "\n")
        return piece.decode(errors="replace")

    def read_until(self, text: str, seconds: float = 30) -> None:
        """Reads until the command has written this."""
        end = time.monotonic() + seconds
        while text not in self.text:
            assert time.monotonic() < end and self.read(), f"{text!r} is missing in {self.text!r}"

    def finish(self) -> int:
        """Reads to the end; returns the exit code."""
        while self.read():
            pass
        os.close(self.ours)
        return self.process.wait()
