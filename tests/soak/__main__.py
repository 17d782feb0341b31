"""Soak test of elastic training: a real job under random faults, for a given time.

    python tests/soak --minutes 15 --report soak.txt

Prints a report; exits with 1 if ranks ever differed, the job hung, or its exit code was not 0.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import diary
import faults
import place

LAST_SECONDS = 90


class Watch:
    """Reads from the diaries which workers are training."""

    def __init__(self, folder):
        self.folder = folder

    def training(self):
        """The processes that finished a step within the last second, and their hosts."""
        now, alive = time.monotonic(), {}
        for path in Path(self.folder).glob("worker-*.jsonl"):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 300))
                lines = file.read().decode(errors="replace").splitlines()
            entry = diary.parse(lines[-1]) if lines else None
            if not entry or entry["event"] != "step" or now - entry["time"] > 1:
                continue
            if Path(f"/proc/{entry['pid']}").exists():
                alive[entry["pid"]] = entry["host"]
        return alive


def main():
    """Runs one soak test and returns its exit code."""
    options = arguments()
    rng = random.Random(options.seed)
    print(f"seed {options.seed}; pass it with --seed to repeat the choices", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="ronde-soak-"))
    site = place.choose(folder, options.hosts, options.slots)
    watch = Watch(folder)
    injector = faults.FaultInjector(rng, site, watch)
    try:
        with (folder / "job.log").open("w") as output:
            job = site.start(command(site, folder, options), environment(), output)
            inject_faults(job, injector, watch, options)
            code = end(job, injector, folder)
        report = diary.judge(diary.read(folder), injector.faults)
    finally:
        site.end()
    text = f"{report.text()}\nexit code                  {code}\n"
    print(text)
    if options.report:
        Path(options.report).write_text(text)
    failed = bool(code != 0 or report.parity_breaks or report.wedges)
    if failed or options.keep:
        print(f"kept: {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return int(failed)


def arguments():
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="A soak of elastic training.")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--spacing", type=float, default=5.0, help="maximum seconds between faults")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--report", help="write the report to this file")
    parser.add_argument("--keep", action="store_true", help="keep the diaries and the job's output")
    return parser.parse_args()


def command(site, folder, options):
    """The command line of the job; hosts that fail come back soon."""
    size = options.hosts * options.slots
    horovodrun = shutil.which("horovodrun", path=Path(sys.executable).parent) or "horovodrun"
    return [
        horovodrun,
        "-np",
        str(size),
        "--min-np",
        "1",
        "--max-np",
        str(size),
        *site.options,
        "--host-discovery-script",
        str(site.script),
        "--blacklist-cooldown-range",
        "1",
        "3",
        sys.executable,
        str(Path(__file__).with_name("train.py")),
        str(folder),
        "0.02",
    ]


def environment():
    """The job's environment: one thread per rank."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HOROVOD_ELASTIC_TIMEOUT": "120"}


def inject_faults(job, injector, watch, options):
    """Injects faults until the time is up."""
    begun = time.monotonic()
    while len(watch.training()) < 2 and time.monotonic() - begun < 120:
        if job.poll() is not None:
            return
        time.sleep(0.2)
    until = time.monotonic() + 60 * options.minutes
    while time.monotonic() < until and job.poll() is None:
        time.sleep(injector.rng.uniform(0.3, 1) * options.spacing)
        kind = injector.inject()
        if kind:
            print(f"{time.monotonic() - begun:7.1f} s  {kind}", flush=True)


def end(job, injector, folder):
    """Lets the job finish and returns its exit code."""
    injector.settle()
    time.sleep(5)
    (folder / "stop").touch()
    try:
        return job.wait(LAST_SECONDS)
    except Exception:
        job.kill()
        return job.wait()


if __name__ == "__main__":
    sys.exit(main())
