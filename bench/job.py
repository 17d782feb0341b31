"""Shared code of the programs in this folder that run a job and save a page of results."""

import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from record import RESULTS, processor


def start(program, options, flags, env=None):
    """Runs a program on all ranks; with `--save` keeps its output and the figures.

    `options` hold the number of ranks and where results go; `flags` are passed on.
    """
    stem = RESULTS / f"{Path(program).stem.replace('_', '-')}-{processor()}-{options.ranks}"
    file = stem.with_name(stem.name + ".json") if options.save else options.json
    command = [launcher(), "-np", str(options.ranks), sys.executable, program, *map(str, flags)]
    command += ["--json", str(file)] if file else []
    quiet = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    env = {**os.environ, **quiet, **(env or {})}
    job = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if job.returncode != 0:
        sys.exit(job.returncode)
    table = job.stdout.replace("[0]<stdout>:", "")
    print(table, end="", flush=True)
    if options.save:
        stem.with_name(stem.name + ".md").write_text(table)


def launcher():
    """The launcher of this interpreter's environment, even if that is not active."""
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return shutil.which("horovodrun", path=beside) or "horovodrun"


def add_options(parser):
    """Adds the common options."""
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--save", action="store_true", help="keep it under bench/results")


def is_rank():
    """Whether this process is a rank of the job, not the process that starts it."""
    return "HOROVOD_RANK" in os.environ


def machine():
    """The machine and its load, for the page of results."""
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }


def described(machine):
    """The machine and its load as text."""
    return f"{machine['processor']}, {machine['cores']} cores, load {machine['load']:.1f} before"


def spelled(seconds, unit, digits):
    """The median and the middle 80 %; `unit` is the number of units per second."""
    ordered = sorted(unit * each for each in seconds)
    tenth = len(ordered) // 10
    low, high = ordered[tenth], ordered[-1 - tenth]
    return f"{statistics.median(ordered):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
