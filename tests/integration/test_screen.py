"""What the commands show on a terminal, a real one with its size."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
RED, CYAN = "\x1b[1m\x1b[31m", "\x1b[1m\x1b[36m"


def shown(*command, columns=80, **variables):
    """What a terminal gets from a command."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    # Each of these would decide for or against colours by itself.
    deciding = ("NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI")
    env = {name: value for name, value in os.environ.items() if name not in deciding}
    env.update({"TERM": "xterm", **variables})
    job = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    text = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the last one has closed it
            break
        if not piece:
            break
        text += piece
    os.close(ours)
    job.wait()
    return text.decode().replace("\r\n", "\n")


def test_errors_and_hints_have_colours_on_a_terminal_unless_nobody_wants_them():
    command = (BIN / "horovodrun", "-np", "2", "--nonsense", "true")
    told = shown(*command)
    assert told.startswith(f"{RED}error:\x1b[0m there is no option `--nonsense`"), repr(told)
    assert f"\n{CYAN}hint:\x1b[0m " in told
    for plain in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in shown(*command, **plain)


def test_the_last_block_of_a_job_has_colours_too():
    told = shown(BIN / "horovodrun", "-np", "1", "sh", "-c", "exit 3")
    assert f"{RED}error:\x1b[0m rank 0 (localhost, slot 0) exited with code 3" in told, repr(told)
    assert f"{CYAN}hint:\x1b[0m " in told


@pytest.mark.timeout(180)
def test_a_table_of_figures_fits_the_terminal():
    told = shown(BIN / "ronde", "bench", "--sizes", "4K", "--rounds", "3", NO_COLOR="1")
    table = [line for line in told.splitlines() if line.startswith("|")]
    assert len(table) == 3, told
    assert max(map(len, table)) <= 80
    assert "engine to engine" not in table[0]
    assert "Some columns are hidden because the terminal is too narrow" in told
