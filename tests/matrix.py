"""Tests one wheel with several PyTorches: `make matrix`.

The wheel is built once, against no PyTorch at all. Each row of `ROWS` is a virtual environment of
its own into which that same file is installed; there the tests without a launcher run, and those
of `tests/parallel` on all numbers of ranks and all transports. What came out is written into
`docs/reference/matrix.md`.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
PAGE = TOP / "docs" / "reference" / "matrix.md"
# One Python that all of them know.
PYTHON = "3.11"
ROWS = {"newest": ["torch"], "2.2": ["torch==2.2.*", "numpy<2"]}
SUITES = {"without a launcher": "tests/single", "parallel": "tests/integration/test_parallel.py"}
VERSIONS = """
import json, platform, numpy, torch
print(json.dumps([torch.__version__, numpy.__version__, platform.python_version()]))
"""


def main():
    options = parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    wheel = options.wheel or build(options.folder / "dist")
    rows = [(*test(name, wheel, options), name) for name in options.rows]
    if options.rows == list(ROWS):
        PAGE.write_text(page(wheel, rows))
    print(page(wheel, rows), end="")
    sys.exit(any(tally["failed"] for _, tallies, *_ in rows for tally in tallies.values()))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    parser.add_argument("--folder", type=Path, default=TOP / ".venv" / "matrix")
    parser.add_argument("--wheel", type=Path, help="one that is built already")
    return parser.parse_args()


def build(folder):
    """The wheel of this checkout."""
    shutil.rmtree(folder, ignore_errors=True)
    uv("build", "--wheel", "--out-dir", folder, TOP)
    (wheel,) = folder.glob("*.whl")
    return wheel


def test(name, wheel, options):
    """Installs the wheel beside a PyTorch and runs the suites: versions, tallies, reasons."""
    place = options.folder / name
    python = place / "bin" / "python"
    if not python.exists():
        uv("venv", "--python", PYTHON, place)
    uv("pip", "install", "--python", python, f"ronde[test] @ {wheel.as_uri()}", *ROWS[name])
    # The version of a wheel under work stays the same.
    uv("pip", "install", "--python", python, "--no-deps", "--reinstall", wheel)
    versions = json.loads(subprocess.check_output([python, "-c", VERSIONS], text=True))
    tallies, reasons = {}, Counter()
    for suite, path in SUITES.items():
        tallies[suite], skipped = run(python, path, place / "results.xml")
        reasons += skipped
    return versions, tallies, reasons


def run(python, path, results):
    """Runs a suite with the commands of that environment: how many of what, and why skipped."""
    results.unlink(missing_ok=True)
    path_of_commands = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    flags = ["-q", "-p", "no:cacheprovider", f"--junitxml={results}"]
    subprocess.run(
        [python, "-m", "pytest", *flags, path],
        cwd=TOP,
        env={**os.environ, "PATH": path_of_commands},
        check=False,
    )
    cases = ElementTree.parse(results).getroot().iter("testcase")
    tally, reasons = Counter(), Counter()
    for case in cases:
        skipped = case.find("skipped")
        failed = case.find("failure") is not None or case.find("error") is not None
        tally["failed" if failed else "passed" if skipped is None else "skipped"] += 1
        if skipped is not None:
            reasons[skipped.get("message")] += 1
    return tally, reasons


def page(wheel, rows):
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lines = [
        "# One wheel, many PyTorches",
        "",
        "The same wheel, built once and against no PyTorch, tested in a virtual environment for",
        "each line; `make matrix` does it and writes this page. The parallel suite is counted in",
        "jobs: its files in batches, on 2, 3 and 4 ranks, through shared memory, sockets and both.",
        "",
        f"Wheel: `{wheel.name}`, SHA-256 `{digest[:16]}…`",
        "",
        "| PyTorch | NumPy | Python | " + " | ".join(SUITES) + " |",
        "| --- | --- | --- |" + " --- |" * len(SUITES),
    ]
    for versions, tallies, _, _ in rows:
        counts = [spelled(tally) for tally in tallies.values()]
        lines.append("| " + " | ".join([*versions, *counts]) + " |")
    for versions, _, reasons, _ in rows:
        for reason, count in sorted(reasons.items()):
            lines += ["", f"Skipped with PyTorch {versions[0]}, {count}: {reason}"]
    return "\n".join(lines) + "\n"


def spelled(tally):
    words = [f"{tally[word]} {word}" for word in ("passed", "failed", "skipped") if tally[word]]
    return ", ".join(words) or "nothing ran"


def uv(*arguments):
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = shutil.which("uv", path=beside)
    if found is None:
        sys.exit("error: `uv` is not on the PATH\nhint: run `make matrix`")
    subprocess.run([found, *map(str, arguments)], check=True)


if __name__ == "__main__":
    main()
