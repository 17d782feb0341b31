"""`python -m horovod.runner.launch` is `horovodrun`."""

from __future__ import annotations

import os
import sys

from horovod.runner.program import horovodrun


def run_commandline() -> None:
    """Becomes `horovodrun` with this process's arguments."""
    command = horovodrun()
    os.execv(command, [command, *sys.argv[1:]])


if __name__ == "__main__":
    run_commandline()
