"""The programs in `bench` that measure training run, and their figures are where they should be."""

import json
import subprocess
import sys
from pathlib import Path

from jobs import LIMIT_SECONDS

BENCH = Path(__file__).resolve().parents[2] / "bench"
WAYS = ["alone", "Ronde", "Ronde, kept", "DDP, ronde", "DDP, gloo"]


def run(*command):
    return subprocess.run(
        [sys.executable, *map(str, command)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_SECONDS,
        check=True,
    ).stdout


def test_training_steps_are_measured_beside_their_peers(tmp_path):
    file = tmp_path / "rounds.json"
    flags = ("--ranks", 2, "--models", "tiny", "--rounds", 2, "--steps", 1, "--json", file)
    table = run(BENCH / "training.py", *flags)
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| tiny")]
    assert [row[1] for row in rows] == WAYS
    results = json.loads(file.read_text())
    assert results["ranks"] == 2
    seconds = results["seconds"]["tiny"]
    assert {way: len(rounds) for way, rounds in seconds.items()} == dict.fromkeys(WAYS, 2)
    assert all(each > 0 for rounds in seconds.values() for each in rounds)


def test_what_python_costs_is_measured():
    lines = run(BENCH / "costs.py", "--rounds", 1).splitlines()
    names = [line.partition(":")[0] for line in lines[1:]]
    assert names == [
        "import torch",
        "import horovod.torch behind it",
        "a hook, whole",
        "a hook, Python alone",
    ]
