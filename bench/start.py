"""Measures how long a job takes to start: `python bench/start.py`.

It times a job whose ranks only join, from the command to its end, compared with torchrun and with
the same number of processes without a launcher (the limit: what Python and its imports take).
Rounds of all ways alternate. "Our own part" is the time of a job whose ranks import no framework,
minus that of the same processes without a launcher.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import save
from record import RESULTS, processor

BARE = "import horovod.raw as hvd"
TORCH = "import torch; import horovod.torch as hvd"
GLOO = "import torch, torch.distributed as dist"
JOIN = "; hvd.init(); assert hvd.size() == {ranks}"
MEET = "; dist.init_process_group('gloo'); dist.barrier(); dist.destroy_process_group()"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--save", action="store_true", help="keep it under bench/results")
    options = parser.parse_args()
    rows = {ranks: measure(ranks, options.rounds) for ranks in options.ranks}
    text = table(rows)
    print(text, end="")
    if options.save:
        stem = RESULTS / f"start-{processor()}"
        stem.with_suffix(".md").write_text(f"# Beginning a job\n\n{text}")
        save(stem.with_suffix(".json"), rows)


def ways(ranks, folder):
    """What is measured, by name: a function that returns when everything has ended."""
    run = ["horovodrun", "-np", str(ranks), sys.executable, "-c"]
    script = Path(folder, "meet.py")
    script.write_text(GLOO + MEET)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    together = [*torchrun, "--nproc-per-node", str(ranks), str(script)]
    return {
        "`true`": lambda: end(["horovodrun", "-np", str(ranks), "true"]),
        "bare, alone": lambda: crowd(ranks, [sys.executable, "-c", BARE]),
        "bare, horovodrun": lambda: end([*run, BARE + JOIN.format(ranks=ranks)]),
        "torch, alone": lambda: crowd(ranks, [sys.executable, "-c", TORCH]),
        "torch, horovodrun": lambda: end([*run, TORCH + JOIN.format(ranks=ranks)]),
        "torch, torchrun": lambda: end(together),
    }


def measure(ranks, rounds):
    with tempfile.TemporaryDirectory() as folder:
        chosen = ways(ranks, folder)
        seconds = {name: [] for name in chosen}
        names = list(chosen)
        for number in range(rounds + 1):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                start = time.perf_counter()
                chosen[name]()
                # The first round warms up.
                if number > 0:
                    seconds[name].append(time.perf_counter() - start)
            print(f"{ranks} ranks: round {number} of {rounds}", file=sys.stderr)
    return seconds


def end(command):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    nowhere = subprocess.DEVNULL
    subprocess.run(command, check=True, stdin=nowhere, stdout=nowhere, env=env, timeout=300)


def crowd(count, command):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    for process in [subprocess.Popen(command, env=env) for _ in range(count)]:
        assert process.wait() == 0


def table(rows):
    cpus = len(os.sched_getaffinity(0))
    names = list(next(iter(rows.values())))
    lines = [
        f"{processor()}, {cpus} cores, Python {platform.python_version()}. Seconds: median (least"
        " to most).",
        "",
        "| ranks | " + " | ".join(names) + " | our own part |",
        "| --- |" + " --- |" * (len(names) + 1),
    ]
    for ranks, seconds in rows.items():
        cells = [
            f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})"
            for each in seconds.values()
        ]
        pairs = zip(seconds["bare, horovodrun"], seconds["bare, alone"])
        own = statistics.median(job - alone for job, alone in pairs)
        lines.append(f"| {ranks} | " + " | ".join(cells) + f" | {own * 1000:.0f} ms |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
