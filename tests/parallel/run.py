"""Runs the test files of this folder on all ranks of a job: `python run.py jax-jit -np 2 4`.

A job tests one framework: it runs the tests of `every` and those of the framework's own folder, in
batches, because importing the framework takes longer than most tests. Every batch is one job per
number of ranks and transport. `islands` is a world whose ranks share memory in pairs and reach the
others through sockets, as on several hosts. A job passes if the launcher succeeds and every rank
has run the same number of tests, at least one, and none has failed. The ranks' results are read
from their result files, so a job that runs nothing cannot pass.

A job counts as hung if no rank has finished a test for a while. Its total time is not limited in
practice, because it depends mostly on the load of the machine.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TRANSPORTS = {
    "auto": {"RONDE_TRANSPORT": "auto"},
    "tcp": {"RONDE_TRANSPORT": "tcp"},
    "islands": {"RONDE_TRANSPORT": "auto", "RONDE_SHARED_RANKS": "2"},
}
# The tests of PyTorch that run in more worlds than the rest.
CORE = ("adasum", "collectives", "join", "optimizer", "process_sets")
# Scales the time limits, for a machine under load.
PATIENCE = float(os.environ.get("RONDE_TEST_PATIENCE", "1"))
SILENCE_SECONDS = 55 * PATIENCE
# No job takes that long; a limit for callers that wait for a job.
LIMIT_SECONDS = 5 * SILENCE_SECONDS


def files_of(folder, *names):
    """The test files with these names, or all of them."""
    files = sorted((FOLDER / folder).glob("test_*.py"))
    return [file for file in files if not names or file.stem.removeprefix("test_") in names]


@dataclass(frozen=True)
class Job:
    """Test files, the framework to run those of `every` with, and the worlds."""

    name: str
    package: str
    framework: str
    files: list
    worlds: tuple
    env: dict = field(default_factory=dict)

    @property
    def missing(self):
        """The package that is not installed, or None."""
        return None if find_spec(self.package) else self.package


def jobs():
    every = files_of("every")
    torch = [*every, *files_of("only_torch")]
    # Every file runs on two ranks, and on two pairs, which use both shared memory and sockets.
    worlds = ((2, "auto"), (4, "islands"))
    # `make matrix` asks for all worlds.
    if os.environ.get("RONDE_TEST_WORLDS") == "all":
        worlds = ((2, "auto"), (2, "tcp"), (4, "auto"), (4, "tcp"), (4, "islands"))
    for number in range(3):
        yield Job(f"torch-{number}", "torch", "torch", torch[number::3], worlds)
    # Tests for which the number of ranks and the transport may matter; three is not a power of two
    # and does not divide everything.
    core = files_of("only_torch", *(f"torch_{name}" for name in CORE))
    worlds = ((3, "auto"), (3, "tcp"), (4, "auto"))
    yield Job("torch-core", "torch", "torch", [*every, *core], worlds)
    yield Job("raw", "numpy", "raw", every, ((2, "auto"), (4, "islands")))
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    first = files_of("only_tensorflow", "compiled", "elastic", "keras")
    rest = [*every, *(file for file in files_of("only_tensorflow") if file not in first)]
    # A single job would take too long on few processors. A framework that compiles functions is
    # tested without and with compilation, in one world each.
    pair, three = (2, "auto"), (3, "auto")
    yield Job("tensorflow-keras", "tensorflow", "tensorflow", first, (pair, three), quiet)
    yield Job("tensorflow-eager", "tensorflow", "tensorflow", rest, (pair,), quiet)
    yield Job("tensorflow-function", "tensorflow", "tensorflow_function", rest, (three,), quiet)
    keras = files_of("only_tensorflow", "elastic", "keras")
    old = {**quiet, "TF_USE_LEGACY_KERAS": "1"}
    yield Job("tensorflow-keras-2", "tf_keras", "tensorflow", keras, (pair,), old)
    jax = [*every, *files_of("only_jax")]
    yield Job("jax-eager", "jax", "jax", jax, (pair,))
    yield Job("jax-jit", "jax", "jax_jit", jax, ((3, "tcp"),))
    mxnet = [*every, *files_of("only_mxnet")]
    # `make gpu` runs these; ranks may share a GPU.
    gpu = {"RONDE_TEST_DEVICE": "gpu"}
    worlds = ((2, "auto"), (4, "auto"))
    # Plain arrays and the arena are in host memory.
    of_host = files_of("only_torch", "raw", "torch_arena")
    torch = [file for file in torch if file not in of_host]
    yield Job("gpu-torch", "torch", "torch", torch, worlds, gpu)
    gpu |= {
        # Callbacks need the CPU, too. Without a GPU, JAX refuses to start.
        "JAX_PLATFORMS": "cuda,cpu",
        # By default a process takes most of a GPU's memory.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        # As exact as on a CPU, and quick to compile.
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        "XLA_FLAGS": "--xla_gpu_autotune_level=0",
    }
    yield Job("gpu-jax-eager", "jax", "jax", jax, worlds, gpu)
    yield Job("gpu-jax-jit", "jax", "jax_jit", jax, worlds, gpu)
    yield Job("mxnet", "mxnet", "mxnet", mxnet, ((2, "auto"), (2, "tcp"), (3, "auto")))


# MXNet needs an old NumPy, so only `make mxnet` and `make matrix` test it, in separate
# environments.
CHOSEN = os.environ.get("RONDE_TEST_FRAMEWORKS", "torch,raw,tensorflow,jax").split(",")
JOBS = {job.name: job for job in jobs() if job.name.partition("-")[0] in CHOSEN}


def main():
    known = {job.name: job for job in jobs()}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", choices=known)
    parser.add_argument(
        "files", nargs="*", type=Path, help="test files to run instead of the job's"
    )
    parser.add_argument("-np", nargs="+", type=int, default=(2,), dest="sizes")
    parser.add_argument("-k", dest="chosen", help="run only tests that match, as in pytest")
    parser.add_argument(
        "--transport", nargs="+", default=("auto",), choices=TRANSPORTS, dest="transports"
    )
    options = parser.parse_args()
    job = known[options.job]
    failed = False
    for size in options.sizes:
        for transport in options.transports:
            problem = run(options.files or job.files, size, transport, job, options.chosen)
            failed = failed or problem is not None
            print(f"{job.name} -np {size} {transport}: {problem or 'passed'}", flush=True)
    sys.exit(failed)


@dataclass(frozen=True)
class Outcome:
    """How a job ended: what went wrong, or None; how many tests each rank has run; its output."""

    problem: str | None
    passed: int = 0
    skipped: int = 0
    output: str = ""


def run(files, size, transport, job, chosen=None, silence=SILENCE_SECONDS):
    """Runs files in one job; returns what went wrong, or None."""
    return run_counted(files, size, transport, job, chosen, silence).problem


def run_counted(files, size, transport, job, chosen=None, silence=SILENCE_SECONDS):
    """Runs files in one job."""
    with tempfile.TemporaryDirectory() as folder:
        command = [launcher(), "-np", str(size), sys.executable, __file__, "--rank", folder]
        env = {**os.environ, **job.env, **TRANSPORTS[transport], "OMP_NUM_THREADS": "1"}
        env["RONDE_TEST_FRAMEWORK"] = job.framework
        command += [*map(str, files), *(["-k", chosen] if chosen else [])]
        output = Path(folder) / "output.txt"
        with output.open("wb") as file:
            running = subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT)
        try:
            hangs = not finishes(running, Path(folder), silence)
        finally:
            # The launcher's guardian ends the ranks.
            running.kill()
            running.wait()
        text = output.read_text(errors="replace")
        if hangs:
            return Outcome(f"no test has ended for {silence:g} s\n{text}")
        outcome = verdict(Path(folder), size)
        problem = outcome.problem
        if running.returncode != 0:
            problem = f"the launcher ended with {running.returncode}, {problem}"
        return replace(outcome, problem=f"{problem}\n{text}" if problem else None, output=text)


def finishes(job, folder, silence):
    """Waits until a job ends; returns False if it makes no progress."""
    begun = time.time()
    while True:
        try:
            job.wait(0.1)
            return True
        except subprocess.TimeoutExpired:
            beats = [file.stat().st_mtime for file in folder.glob("*.heartbeat")]
            if time.time() - max(beats, default=begun) > silence:
                return False


def launcher():
    """The command that starts jobs: the one in PATH, or the one next to the interpreter."""
    path = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    found = shutil.which("horovodrun", path=path)
    if found is None:
        raise FileNotFoundError("horovodrun is not in PATH; install the package first")
    return found


def verdict(folder, size):
    """What the result files of the ranks say."""
    passed, skipped = set(), 0
    for rank in range(size):
        file = folder / f"{rank}.xml"
        if not file.exists():
            return Outcome(f"rank {rank} left no results")
        suite = ElementTree.parse(file).getroot().find("testsuite")
        tests, bad = int(suite.get("tests")), int(suite.get("failures")) + int(suite.get("errors"))
        if bad:
            return Outcome(f"rank {rank} has {bad} failed tests")
        skipped = int(suite.get("skipped"))
        passed.add(tests - skipped)
    if passed == {0} or len(passed) != 1:
        return Outcome(f"the ranks have run {sorted(passed)} tests")
    return Outcome(None, passed.pop(), skipped)


def rank_main(folder, *files):
    """Runs on each rank: a test session that stops at its first failure."""
    import pytest

    # Read now, because elastic tests change the variable.
    rank = os.environ["HOROVOD_RANK"]
    result = Path(folder) / f"{rank}.xml"
    return pytest.main(
        [
            *files,
            "-q",
            "-x",
            f"--timeout={40 * PATIENCE}",
            "--timeout-method=thread",
            "-p",
            "no:cacheprovider",
            f"--junitxml={result}",
        ],
        plugins=[Heartbeat(Path(folder) / f"{rank}.heartbeat")],
    )


class Heartbeat:
    """Touches a file after every test."""

    def __init__(self, file):
        self._file = file

    def pytest_runtest_logfinish(self):
        self._file.touch()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        sys.exit(rank_main(*sys.argv[2:]))
    main()
