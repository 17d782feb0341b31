"""Shows Ronde in half a minute: the same training script on one rank and on two.

It prints what it measures on this machine. Each rank has one thread, so that two ranks have twice
the computing power of one.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().with_name("train.py")


def main():
    cores = len(os.sched_getaffinity(0))
    print(f"Reading handwritten digits (1,797 images of 8 x 8 dots) on {cores} cores.\n")
    busy = os.getloadavg()[0]
    alone = train(1)
    together = train(2)
    speedup = together["samples_per_s"] / alone["samples_per_s"]
    print()
    print("          accuracy   samples/s")
    for ranks, result in ((1, alone), (2, together)):
        plural = "s" if ranks > 1 else " "
        rate = f"{result['samples_per_s']:,.0f}"
        print(f"{ranks} rank{plural}   {result['accuracy']:8.3f}   {rate:>9}")
    print(f"\nTwo ranks were {speedup:.2f} times as fast as one.")
    if cores < 2:
        print("This machine lends us one core only, so two ranks share it.")
    elif busy > cores / 2:
        print(f"Other programs were busy (load {busy:.1f} on {cores} cores); try again when idle.")
    print(
        "\nWhat to try next:\n"
        f"  horovodrun -np 2 python {os.path.relpath(SCRIPT)} --batch-size 64\n"
        "  end one rank with `kill -9` while it runs, and read what the job says\n"
        "  start a Horovod script of your own: horovodrun -np 2 python your_script.py"
    )


def train(ranks):
    """Runs the training script and returns its report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [launcher(), "-np", str(ranks), sys.executable, str(SCRIPT)]
        print(f"$ horovodrun -np {ranks} python {os.path.relpath(SCRIPT)}", flush=True)
        done = subprocess.run(
            [*command, "--report", str(report)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        )
        if done.returncode != 0:
            sys.exit(done.returncode)
        return json.loads(report.read_text())


def launcher():
    path = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    found = shutil.which("horovodrun", path=path)
    if found is None:
        sys.exit("error: `horovodrun` is not in the path\nhint: run `make demo`")
    return found


if __name__ == "__main__":
    main()
