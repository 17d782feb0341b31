"""Tests one wheel with many versions of the frameworks: `make matrix`.

The wheel is built once, without any framework. Each row of `ROWS` is a separate virtual environment
into which that same file is installed. The tests of the row's framework run there: those that need
no launcher, and those that start jobs. The results are kept next to the environments, so that
`--rows` can continue an earlier run; once all rows have results, they are written to
`docs/reference/matrix.md`.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
PAGE = TOP / "docs" / "reference" / "matrix.md"
PATIENCE = float(os.environ.get("RONDE_TEST_PATIENCE", "1"))
SUITES = ("without a launcher", "jobs")
PARALLEL = "tests/integration/test_parallel.py"


@dataclass(frozen=True)
class Framework:
    """The tests to run for a framework, and the packages whose versions are listed."""

    alone: tuple[str, ...]
    jobs: tuple[str, ...]
    tells: tuple[str, ...]
    # What `tests/parallel` runs with.
    parallel: str = ""


@dataclass(frozen=True)
class Row:
    """One environment: its packages, and the environment variables of its tests."""

    framework: Framework
    packages: tuple[str, ...]
    # Packages whose declared dependencies are larger or older than what they need.
    without_dependencies: tuple[str, ...] = ()
    # A Python version that all but the newest releases support.
    python: str = "3.11"
    env: dict[str, str] = field(default_factory=dict)


TORCH = Framework(
    alone=("tests/single",),
    jobs=(PARALLEL,),
    tells=("torch",),
    parallel="torch,raw",
)
TENSORFLOW = Framework(
    alone=("tests/single/test_tensorflow.py",),
    jobs=(PARALLEL, "tests/integration/test_examples_tf.py"),
    tells=("tensorflow-cpu", "keras", "tf-keras"),
    parallel="tensorflow",
)
JAX = Framework(
    alone=("tests/single/test_jax.py",),
    jobs=(PARALLEL,),
    tells=("jax", "optax", "keras"),
    parallel="jax",
)
MXNET = Framework(
    alone=("tests/single/test_mxnet.py",),
    jobs=(PARALLEL, "tests/integration/test_lost_mxnet.py"),
    tells=("mxnet",),
    parallel="mxnet",
)
SOCKEYE = Framework(
    alone=(),
    jobs=("tests/integration/test_sockeye.py",),
    tells=("sockeye", "mxnet"),
)
# The Python version for the newest JAX and TensorFlow.
NEWEST = "3.13"
ROWS = {
    "torch-oldest": Row(TORCH, ("torch==2.1.*", "numpy<2")),
    "torch-newest": Row(TORCH, ("torch", "numpy")),
    "tensorflow-oldest": Row(TENSORFLOW, ("tensorflow-cpu==2.13.*",)),
    "keras-3-oldest": Row(TENSORFLOW, ("tensorflow-cpu==2.16.*", "keras==3.0.*")),
    "tensorflow-newest": Row(TENSORFLOW, ("tensorflow-cpu",), python=NEWEST),
    "keras-2": Row(
        TENSORFLOW,
        ("tensorflow-cpu",),
        without_dependencies=("tf-keras",),
        env={"TF_USE_LEGACY_KERAS": "1"},
    ),
    "jax-oldest": Row(JAX, ("jax==0.4.31", "optax", "keras")),
    "jax-0.4.35": Row(JAX, ("jax==0.4.35", "optax", "keras")),
    "jax-0.5": Row(JAX, ("jax==0.5.*", "optax", "keras")),
    "jax-0.6": Row(JAX, ("jax==0.6.*", "optax", "keras")),
    "jax-newest": Row(JAX, ("jax", "optax", "keras"), python=NEWEST),
    "mxnet": Row(MXNET, ("mxnet==1.9.1", "numpy<1.24")),
    "sockeye": Row(SOCKEYE, ("sockeye==2.3.24", "numpy<1.24", "mpi4py>=4.1", "mpich>=4.3")),
}
TOOLS = ("pytest>=8", "pytest-timeout>=2.2")
VERSIONS = """
import importlib.metadata, json, platform, sys
found = {"Python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def main():
    options = parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    wheel = options.wheel or build(options.folder / "dist")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    for name in options.rows:
        result = test(name, wheel, options.folder)
        note = {"wheel": digest, **dataclasses.asdict(result)}
        (options.folder / f"{name}.json").write_text(json.dumps(note))
    results = known(digest, options.folder)
    text = page(wheel.name, digest, results.values())
    if list(results) == list(ROWS):
        PAGE.write_text(text)
    print(text, end="")
    sys.exit(any(results[name].broken for name in options.rows))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    parser.add_argument("--folder", type=Path, default=TOP / ".venv" / "matrix")
    parser.add_argument("--wheel", type=Path, help="use this wheel instead of building one")
    return parser.parse_args()


def known(digest, folder):
    """All results for this wheel, from this run or earlier ones, in table order."""
    results = {}
    for name in ROWS:
        file = folder / f"{name}.json"
        note = json.loads(file.read_text()) if file.exists() else {}
        if note.pop("wheel", None) == digest:
            results[name] = Result(**note)
    return results


def build(folder):
    """Builds the wheel of this checkout."""
    shutil.rmtree(folder, ignore_errors=True)
    uv("build", "--wheel", "--out-dir", folder, TOP)
    (wheel,) = folder.glob("*.whl")
    return wheel


@dataclass
class Result:
    """The results in one environment: counts, names of failed tests, reasons for skipping."""

    versions: dict[str, str]
    tallies: list[dict[str, int]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    # Whether PyTorch jobs ran in all worlds or only in those of `make test`.
    worlds: str = "make test"

    @property
    def broken(self):
        """Whether a test failed or none passed."""
        return bool(self.failed) or not any(tally.get("passed") for tally in self.tallies)


def test(name, wheel, folder):
    """Creates the environment of a row and runs its suites there."""
    row, place = ROWS[name], folder / name
    python = place / "bin" / "python"
    if not python.exists():
        uv("venv", "--python", row.python, place)
    uv("pip", "install", "--python", python, wheel, *TOOLS, *row.packages)
    # A rebuilt wheel has the same version, so its installation has to be forced.
    for package in (*row.without_dependencies, wheel):
        uv("pip", "install", "--python", python, "--no-deps", "--reinstall", package)
    told = [python, "-c", VERSIONS, "numpy", *row.framework.tells]
    result = Result(json.loads(subprocess.check_output(told, text=True)))
    result.worlds = os.environ.get("RONDE_TEST_WORLDS", result.worlds)
    env = {**row.env, "RONDE_TEST_FRAMEWORKS": row.framework.parallel}
    for paths in (row.framework.alone, row.framework.jobs):
        result.tallies.append(run(python, paths, env, result) if paths else {})
    return result


def run(python, paths, env, result):
    """Runs a suite with the commands of that environment and counts the outcomes."""
    report = python.parents[1] / "results.xml"
    report.unlink(missing_ok=True)
    path_of_commands = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    flags = ["-q", "-p", "no:cacheprovider", f"--timeout={60 * PATIENCE}", f"--junitxml={report}"]
    subprocess.run(
        [python, "-m", "pytest", *flags, *paths],
        cwd=TOP,
        env={**os.environ, "PATH": path_of_commands, **env},
        check=False,
    )
    tally = Counter()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            tally["failed"] += 1
            result.failed.append(f"{case.get('classname').rpartition('.')[2]}::{case.get('name')}")
        elif skipped is not None:
            tally["skipped"] += 1
            reason = skipped.get("message")
            result.skipped[reason] = result.skipped.get(reason, 0) + 1
        else:
            tally["passed"] += 1
    return dict(tally)


def page(wheel, digest, results):
    lines = [
        "# One wheel, many frameworks",
        "",
        "The same wheel, built once and against no framework, tested in a virtual environment for",
        "each line; `make matrix` does it and writes this page. A job is a run of test files or of",
        "a program on two to four ranks; those of PyTorch go through shared memory, sockets and",
        "both.",
        "",
        f"Wheel: `{wheel}`, SHA-256 `{digest[:16]}…`",
        "",
        "| frameworks | NumPy | Python | " + " | ".join(SUITES) + " |",
        "| --- | --- | --- |" + " --- |" * len(SUITES),
    ]
    notes = []
    for result in results:
        names = ", ".join(f"{name} {version}" for name, version in frameworks(result))
        places = [result.versions["numpy"], result.versions["Python"]]
        lines.append("| " + " | ".join([names, *places, *map(spelled, result.tallies)]) + " |")
        if "torch" in result.versions and result.worlds != "all":
            notes.append(f"- {names}: jobs in the worlds of `make test` only")
        notes += [f"- {names}: `{test}` failed" for test in result.failed]
        notes += [
            f"- {names}: {count} skipped: {reason}"
            for reason, count in sorted(result.skipped.items())
        ]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def frameworks(result):
    return [pair for pair in result.versions.items() if pair[0] not in ("Python", "numpy")]


def spelled(tally):
    words = [f"{tally[word]} {word}" for word in ("passed", "failed", "skipped") if word in tally]
    return ", ".join(words) or "-"


def uv(*arguments):
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = shutil.which("uv", path=beside)
    if found is None:
        sys.exit("error: `uv` is not on the PATH\nhint: run `make matrix`")
    subprocess.run([found, *map(str, arguments)], check=True)


if __name__ == "__main__":
    main()
