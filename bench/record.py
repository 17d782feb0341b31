"""Measures everything on this machine and keeps it under `bench/results`: `make bench-results`.

For each number of ranks it runs `ronde bench` once with all available peers. The files are named
after the processor, so that figures of several machines can be kept side by side.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from figures import save

RESULTS = Path(__file__).resolve().parent / "results"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    options, others = parser.parse_known_args()
    for ranks in options.ranks:
        name = f"{processor()}-{ranks}"
        command = [
            *("ronde", "bench", "-np", str(ranks), "--collective", "all"),
            *("--compare", "gloo,mpi", "--json", str(RESULTS / f"{name}.json")),
            *("--plot", str(RESULTS / f"{name}.svg"), *others),
        ]
        print("measuring", name, flush=True)
        table = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if table.returncode != 0:
            sys.exit(table.returncode)
        save(RESULTS / f"{name}.json", json.loads((RESULTS / f"{name}.json").read_text()))
        text = f"# Collectives on {ranks} ranks\n\n![times]({name}.svg)\n\n{table.stdout}"
        (RESULTS / f"{name}.md").write_text(text)


def processor():
    """The name of the processor, for use in file names."""
    lines = Path("/proc/cpuinfo").read_text().split("\n")
    names = [line.split(":", 1)[1] for line in lines if line.startswith("model name")]
    name = names[0] if names else "unknown"
    name = re.sub(r"\((r|tm)\)|\bcpu\b|\bprocessor\b|@.*", " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


if __name__ == "__main__":
    main()
