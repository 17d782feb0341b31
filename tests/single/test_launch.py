"""`python -m horovod.runner.launch`, by which scripts find the launcher without a PATH."""

import subprocess
import sys

import horovod


def test_the_module_is_the_command():
    told = subprocess.run(
        [sys.executable, "-m", "horovod.runner.launch", "--version"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (told.returncode, told.stdout.strip()) == (0, horovod.__version__), told.stderr
