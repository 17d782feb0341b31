"""`python -m horovod._selftest HOROVODRUN [PART...]`: a job on two ranks for each part.

Each part is a job of its own, so that a framework that crashes or hangs takes no other along.
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
    """How a part went: nothing in `trouble` is good."""

    told: str
    trouble: str
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
        mark = "FAILED" if outcome.trouble else "ok"
        print(f"{mark:<7} {outcome.told or part.about} ({outcome.seconds:.1f} s)", flush=True)
        if outcome.trouble:
            broken.append(part.title)
            print("\n" + "\n".join(f"    {line}" for line in outcome.trouble.splitlines()) + "\n")
    if missing:
        print(f"\nNot installed here: {', '.join(missing)}.")
    if broken:
        print(f"\nerror: {', '.join(broken)} failed; the lines above say why", file=sys.stderr)
        print("\nhint: `ronde doctor` looks at the machine, `ronde env` makes a report for a bug")
        return 1
    if names and missing:
        print("\nerror: what was asked for is not all installed", file=sys.stderr)
        return 1
    print("\nEverything that was tried works. Now your script:")
    print("  horovodrun -np 2 python train.py")
    return 0


def installed(part: Part) -> bool:
    """Whether its framework is here."""
    needed = [part.module] if part.module else []
    if part is Part.keras:
        needed.append(os.environ.get("KERAS_BACKEND", "tensorflow"))
    return all(importlib.util.find_spec(name) for name in needed)


def environment(part: Part) -> dict[str, str]:
    """The environment of its ranks."""
    # Two ranks with a thread for each core would wait for each other.
    env = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
    if part is Part.sockets:
        env["RONDE_TRANSPORT"] = "tcp"
    return env


def run(horovodrun: str, part: Part) -> Outcome:
    """One part as a job."""
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
        # The launcher ends its ranks, whatever they do.
        job.send_signal(signal.SIGTERM)
        output, _ = job.communicate()
    lines = output.splitlines()
    told = [line.split("selftest: ", 1)[1] for line in lines if "selftest: " in line]
    trouble = ""
    if late or job.returncode != 0:
        trouble = "\n".join(lines[-LAST_LINES:] + ([late] if late else []))
    elif not told:
        trouble = "the ranks exited without printing anything\n" + "\n".join(lines[-LAST_LINES:])
    return Outcome(told[-1] if told else "", trouble, time.monotonic() - start)


if __name__ == "__main__":
    sys.exit(main())
