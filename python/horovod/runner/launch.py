"""`python -m horovod.runner.launch` is `horovodrun`; its command lines can be parsed from
Python."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from horovod.runner import options
from horovod.runner.program import horovodrun

__all__ = ["parse_args", "run_commandline"]


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a command line of `horovodrun`.

    The file of `--config-file` is included. An error is printed and ends this process with code 2,
    as with argparse.

    Args:
        arguments: The arguments (default: those of this process).

    Returns:
        A namespace with Horovod's attribute names; options that are not given are None, or False if
        they are switches.
    """
    command_line = options.parse(sys.argv[1:] if arguments is None else arguments)
    nics = command_line.arguments.pop("nics")
    parsed = argparse.Namespace(**command_line.arguments, run_func=None, executable=None)
    parsed.nics = None if nics is None else set(nics)
    return parsed


def run_commandline() -> None:
    """Replace this process by `horovodrun`, with the same arguments."""
    command = horovodrun()
    os.execv(command, [command, *sys.argv[1:]])


if __name__ == "__main__":
    run_commandline()
