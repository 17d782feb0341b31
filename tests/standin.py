"""The stand-in for NVIDIA's driver and NCCL, for jobs on machines without a GPU."""

import functools
import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@functools.cache
def library():
    """Builds the stand-in, unless the tests of the Rust code have; returns its path."""
    command = ["cargo", "build", "--locked", "--quiet", "-p", "ronde-standin-gpu"]
    done = subprocess.run(
        [*command, "--message-format=json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    messages = map(json.loads, done.stdout.splitlines())
    files = [file for each in messages for file in each.get("filenames", ())]
    return next(file for file in files if file.endswith("libronde_standin_gpu.so"))


def environment(settings):
    """The environment in which a job uses the stand-in, with these settings."""
    path = library()
    return {"RONDE_CUDA": path, "RONDE_NCCL": path, "RONDE_STANDIN_GPU": settings}
