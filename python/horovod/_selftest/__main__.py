"""`python -m horovod._selftest HOROVODRUN [PART...]`: a job on two ranks for each part.

Each part is a separate job, so that a framework that crashes or hangs does not affect the others.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import signal
import subprocess
import sys
import time
from typing import NamedTuple

from horovod import __version__
from horovod._selftest.parts import Part

RANKS = 2
LIMIT_SECONDS = 180
LAST_LINES = 15


class Outcome(NamedTuple):
    """The result of a part; `failure` is empty if it succeeded."""

    report: str
    failure: str
    seconds: float


def main() -> int:
    """Runs every part and prints a line for each."""
    horovodrun, *names = sys.argv[1:]
    known = [part.name for part in Part]
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"error: there is no part `{unknown[0]}`\n", file=sys.stderr)
        print(f"hint: the parts are {', '.join(known)}", file=sys.stderr)
        return 2
    wanted = [part for part in Part if not names or part.name in names]
    print(f"Ronde {__version__}, Python {platform.python_version()}: {RANKS} ranks on this machine")
    print(flush=True)
    missing, broken = [], []
    for part in wanted:
        if not installed(part):
            missing.append(part.title)
            continue
        print(f"  {part.title:<18} ", end="", flush=True)
        outcome = run(horovodrun, part)
        mark = "FAILED" if outcome.failure else "ok"
        print(f"{mark:<7} {outcome.report or part.about} ({outcome.seconds:.1f} s)", flush=True)
        if outcome.failure:
            broken.append(part.title)
            print("\n" + "\n".join(f"    {line}" for line in outcome.failure.splitlines()) + "\n")
    if missing:
        print(f"\nNot installed here: {', '.join(missing)}.")
    if broken:
        print(f"\nerror: {', '.join(broken)} failed; the lines above say why", file=sys.stderr)
        print(
            "\nhint: `ronde doctor` checks the machine, `ronde env` prints what to attach to a bug "
            "report"
        )
        return 1
    if names and missing:
        print("\nerror: some of the requested frameworks are not installed", file=sys.stderr)
        return 1
    print("\nEverything that was tried works. Now your script:")
    print("  horovodrun -np 2 python train.py")
    return 0


def installed(part: Part) -> bool:
    """Whether its framework is installed."""
    needed = [part.module] if part.module else []
    if part is Part.keras:
        needed.append(os.environ.get("KERAS_BACKEND", "tensorflow"))
    return all(importlib.util.find_spec(name) for name in needed)


def environment(part: Part) -> dict[str, str]:
    """The environment of its ranks."""
    # Two ranks with a thread for each core would compete for the cores.
    env = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
    if part is Part.sockets:
        env["RONDE_TRANSPORT"] = "tcp"
    return env


def run(horovodrun: str, part: Part) -> Outcome:
    """Runs one part as a job."""
    command = [horovodrun, "-np", str(RANKS)]
    command += [sys.executable, "-m", "horovod._selftest.parts", part.name]
    start = time.monotonic()
    job = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment(part),
    )
    late: str | None = None
    try:
        output, _ = job.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        late = f"it was still running after {LIMIT_SECONDS} s"
        # The launcher ends its ranks in any case.
        job.send_signal(signal.SIGTERM)
        output, _ = job.communicate()
    lines = output.splitlines()
    reports = [line.split("selftest: ", 1)[1] for line in lines if "selftest: " in line]
    failure = ""
    if late or job.returncode != 0:
        failure = "\n".join(lines[-LAST_LINES:] + ([late] if late else []))
    elif not reports:
        failure = "the ranks exited without printing anything\n" + "\n".join(lines[-LAST_LINES:])
    return Outcome(reports[-1] if reports else "", failure, time.monotonic() - start)


if __name__ == "__main__":
    sys.exit(main())
