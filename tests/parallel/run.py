"""Runs test files of this folder on all ranks of a job: `python run.py -np 2 4 --transport tcp`.

Files are run in batches, since importing the framework takes longer than most of them; every batch
is one job per number of ranks and transport. `islands` is a world whose ranks share memory in pairs
and reach the others through sockets, as on several hosts. A job has passed if the launcher says so
and if every rank has run the same tests, at least one of them, and none has failed; what the ranks
report is read from their result files, so that a job which runs nothing cannot pass.

A job hangs if for a while no rank has come to the end of a test. How long it takes in all says only
what else the machine has to do.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
FILES = sorted(FOLDER.glob("test_*.py"))
BATCHES = [FILES[start::3] for start in range(3)]
# Every file runs on a pair, and on two pairs, where memory and sockets both have their part.
WORLDS = ((2, "auto"), (4, "islands"))
# `make matrix` asks for all there are.
if os.environ.get("RONDE_TEST_WORLDS") == "all":
    WORLDS = ((2, "auto"), (2, "tcp"), (4, "auto"), (4, "tcp"), (4, "islands"))
# Where the number of ranks and the transport may matter by themselves; three is no power of two and
# does not divide everything.
CORE_WORLDS = ((3, "auto"), (3, "tcp"), (4, "auto"))
CORE_BATCH = [
    FOLDER / f"test_torch_{name}.py"
    for name in ("adasum", "collectives", "exchange", "join", "optimizer", "process_sets")
]
TRANSPORTS = {
    "auto": {"RONDE_TRANSPORT": "auto"},
    "tcp": {"RONDE_TRANSPORT": "tcp"},
    "islands": {"RONDE_TRANSPORT": "auto", "RONDE_SHARED_RANKS": "2"},
}
# A machine that does much else at the same time can be given more time.
PATIENCE = float(os.environ.get("RONDE_TEST_PATIENCE", "1"))
SILENCE_SECONDS = 55 * PATIENCE
# Nothing takes that long; it is for whoever waits for a job from outside.
LIMIT_SECONDS = 5 * SILENCE_SECONDS


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, default=FILES)
    parser.add_argument("-np", nargs="+", type=int, default=(2, 4), dest="sizes")
    parser.add_argument(
        "--transport", nargs="+", default=("auto", "tcp"), choices=TRANSPORTS, dest="transports"
    )
    options = parser.parse_args()
    failed = False
    for file in options.files:
        for size in options.sizes:
            for transport in options.transports:
                problem = run([file], size, transport)
                failed = failed or problem is not None
                print(f"{file.name} -np {size} {transport}: {problem or 'passed'}", flush=True)
    sys.exit(failed)


def run(files, size, transport, silence=SILENCE_SECONDS):
    """Runs files in one job; gives what went wrong, or None."""
    with tempfile.TemporaryDirectory() as folder:
        command = [launcher(), "-np", str(size), sys.executable, __file__, "--rank", folder]
        env = {**os.environ, **TRANSPORTS[transport], "OMP_NUM_THREADS": "1"}
        output = Path(folder) / "output.txt"
        with output.open("wb") as file:
            job = subprocess.Popen(
                [*command, *map(str, files)], env=env, stdout=file, stderr=subprocess.STDOUT
            )
        try:
            hangs = not ends(job, Path(folder), silence)
        finally:
            # The launcher's guardian ends the ranks.
            job.kill()
            job.wait()
        told = output.read_text(errors="replace")
        if hangs:
            return f"no test has ended for {silence:g} s\n{told}"
        problem = verdict(Path(folder), size)
        if job.returncode != 0:
            problem = f"the launcher ended with {job.returncode}, {problem}"
        return f"{problem}\n{told}" if problem else None


def ends(job, folder, silence):
    """Waits for the end of a job; False if it comes no further."""
    begun = time.time()
    while True:
        try:
            job.wait(0.1)
            return True
        except subprocess.TimeoutExpired:
            signs = [file.stat().st_mtime for file in folder.glob("*.sign")]
            if time.time() - max(signs, default=begun) > silence:
                return False


def launcher():
    """The command that starts jobs: the one in the path, or beside the interpreter."""
    path = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    found = shutil.which("horovodrun", path=path)
    if found is None:
        raise FileNotFoundError("horovodrun is not in the path; install the package first")
    return found


def verdict(folder, size):
    """What is wrong with the result files of the ranks, or None."""
    passed = set()
    for rank in range(size):
        file = folder / f"{rank}.xml"
        if not file.exists():
            return f"rank {rank} left no results"
        suite = ElementTree.parse(file).getroot().find("testsuite")
        tests, bad = int(suite.get("tests")), int(suite.get("failures")) + int(suite.get("errors"))
        if bad:
            return f"rank {rank} has {bad} failed tests"
        passed.add(tests - int(suite.get("skipped")))
    if passed == {0} or len(passed) != 1:
        return f"the ranks have run {sorted(passed)} tests"
    return None


def rank_main(folder, *files):
    """What each rank does: a test session that ends with its first failure."""
    import pytest

    # Elastic tests change the variable.
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
        plugins=[Signs(Path(folder) / f"{rank}.sign")],
    )


class Signs:
    """Touches a file behind every test."""

    def __init__(self, file):
        self._file = file

    def pytest_runtest_logfinish(self):
        self._file.touch()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        sys.exit(rank_main(*sys.argv[2:]))
    main()
