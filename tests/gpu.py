"""Runs the parallel suites of torch and JAX on the GPUs of this machine: `make gpu`.

Ranks may share a GPU, so one is enough. Each suite runs twice: over NCCL, and through host memory,
which is what ranks use without NCCL. A suite whose framework is missing, or that could not use NCCL
where it should, counts as failed: nothing is left out silently. With `--save`, the results go to
`docs/reference/gpu.md`.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from horovod import _native

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "reference" / "gpu.md"
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
PACKAGES = ("torch", "jax")
# What a job prints if all its GPU tensors do without NCCL.
DETOUR = "GPU tensors go through host memory"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true", help="write the results to the page")
    parser.add_argument("--ranks", nargs="+", type=int, default=(2, 4))
    runner = load_runner()
    jobs = {job.name: job for job in runner.jobs() if job.name.startswith("gpu-")}
    parser.add_argument("--suites", nargs="+", choices=jobs, default=list(jobs))
    options = parser.parse_args()
    chosen = [jobs[name] for name in options.suites]
    rows, failed = [], False
    with tempfile.TemporaryDirectory() as empty:
        for job in chosen:
            for ranks in options.ranks:
                for path, env in paths(empty).items():
                    outcome = attempt(runner, job, ranks, env)
                    if path == "NCCL" and outcome.problem is None and DETOUR in outcome.output:
                        outcome = runner.Outcome(f"NCCL was not used\n{outcome.output}")
                    failed |= outcome.problem is not None
                    rows.append(row(job, ranks, path, outcome))
                    print(rows[-1], flush=True)
                    if outcome.problem:
                        print(outcome.problem, flush=True)
    if options.save:
        save(
            [*about(), "", "| suite | ranks | path | result |", "| --- | --- | --- | --- |", *rows]
        )
    sys.exit(failed)


def paths(empty):
    """Environments in which GPU tensors take each path."""
    return {"NCCL": {}, "host memory": {"RONDE_NCCL": str(Path(empty) / "none.so")}}


def attempt(runner, job, ranks, env):
    if job.missing:
        return runner.Outcome(f"{job.missing} is not installed")
    os.environ.update(env)
    try:
        return runner.run_counted(job.files, ranks, "auto", job, silence=3 * runner.SILENCE_SECONDS)
    finally:
        for name in env:
            del os.environ[name]


def row(job, ranks, path, outcome):
    result = "**failed**"
    if outcome.problem is None:
        result = f"{outcome.passed} passed"
        result += f", {outcome.skipped} skipped" if outcome.skipped else ""
    return f"| {job.name.removeprefix('gpu-')} | {ranks} | {path} | {result} |"


def about():
    """The hardware and software, in one line."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpus = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")
    versions = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    number = _native.nccl_version()
    versions.append(f"NCCL {number // 10000}.{number // 100 % 100}.{number % 100}")
    found = [gpu for gpu in gpus if gpu]
    return [f"{len(found)} GPU: {found[0]} (driver); {', '.join(versions)}."]


def save(lines):
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text("\n".join([before + BEGIN, *lines, END]) + after)


def load_runner():
    file = HERE / "parallel" / "run.py"
    spec = importlib.util.spec_from_file_location("parallel_run", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
