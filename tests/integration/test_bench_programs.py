"""The programs in `bench` that measure training run, and write their figures where expected."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
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


def test_training_steps_are_measured_together_with_their_peers(tmp_path):
    file = tmp_path / "figures.json"
    flags = ("--ranks", 2, "--models", "tiny", "--rounds", 2, "--steps", 1, "--json", file)
    table = run(BENCH / "training.py", *flags)
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| tiny")]
    assert [row[1] for row in rows] == WAYS
    results = json.loads(file.read_text())
    assert results["ranks"] == 2
    seconds = results["seconds"]["tiny"]
    assert {way: figures["rounds"] for way, figures in seconds.items()} == dict.fromkeys(WAYS, 2)
    assert all(0 < each["p10"] <= each["median"] <= each["p90"] for each in seconds.values())


def test_the_cost_of_python_is_measured():
    lines = run(BENCH / "costs.py", "--rounds", 1).splitlines()
    names = [line.partition(":")[0] for line in lines[1:]]
    assert names == [
        "import torch",
        "import horovod.torch behind it",
        "a hook, whole",
        "a hook, Python alone",
    ]


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_a_tensorflow_step_sends_its_gradients_together(tmp_path):
    file = tmp_path / "figures.json"
    run(BENCH / "tensorflow_step.py", "--rounds", 2, "--steps", "100x16", "--json", file)
    (step,) = json.loads(file.read_text())["steps"]
    assert step["tensors"] == 100 and step["seconds"]["compiled"]["rounds"] == 2
    # How many are ready at the same time varies, but they are never sent one by one.
    assert 1 <= step["buckets"]["one by one"] < 20
    assert step["buckets"]["grouped"] == step["buckets"]["compiled"] == 1
    assert step["buckets"]["plain"] == 0


@pytest.mark.skipif(sys.version_info < (3, 10), reason="JAX needs Python 3.10")
def test_a_jax_step_is_measured():
    table = run(BENCH / "jax_step.py", "--rounds", 2, "--trees", "3x4")
    row = table.splitlines()[-1].split(" | ")
    assert row[:2] == ["| 3", "4"] and len(row) == 6


@pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_readers_are_measured_together_with_torch(tmp_path):
    file = tmp_path / "figures.json"
    table = run(BENCH / "reader.py", "--rows", 500, "--rounds", 1, "--json", file)
    rates = json.loads(file.read_text())["rates"]
    assert len(rates) == 7 and "| torch, rows |" in table
    assert all(0 < each["p10"] <= each["median"] for each in rates.values())
