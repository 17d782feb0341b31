"""`python -m horovod.runner.launch`, with which scripts start the launcher without a PATH."""

import subprocess
import sys

import horovod


def test_the_module_runs_the_command():
    result = subprocess.run(
        [sys.executable, "-m", "horovod.runner.launch", "--version"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (result.returncode, result.stdout.strip()) == (0, horovod.__version__), result.stderr
