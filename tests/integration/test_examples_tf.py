"""The TensorFlow and Keras examples train, and all ranks end with the same model."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

# Not imported here: it is slow, and TensorFlow and torch's Triton cannot share a process.
pytestmark = pytest.mark.skipif(
    find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def job(example, *arguments, **environment):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    command = ["horovodrun", "-np", "2", sys.executable, EXAMPLES / example / "train.py"]
    result = subprocess.run(
        [*command, *arguments], env=env, capture_output=True, text=True, timeout=55, check=False
    )
    assert result.returncode == 0, result.stderr
    lines = re.findall(r"^\[\d\]<stdout>:rank (\d): (.*)$", result.stdout, re.MULTILINE)
    assert sorted(rank for rank, _ in lines) == ["0", "1"], result.stdout
    words = {text for _, text in lines}
    assert len(words) == 1, words
    return words.pop()


def test_a_loop_with_a_tape_trains():
    words = job("10-tensorflow-tape", "--steps", "100")
    assert float(re.search(r"accuracy ([\d.]+)", words)[1]) > 0.9


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_keras_fit_trains(backend, tmp_path):
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    path = tmp_path / "model.keras"
    words = job("11-keras-fit", "--checkpoint", str(path), KERAS_BACKEND=backend)
    assert float(re.search(r"accuracy ([\d.]+)", words)[1]) > 0.7
    assert path.exists()


def test_a_tensorflow_1_session_trains():
    found = [float(number) for number in job("12-tensorflow-1", "--steps", "100").split()]
    assert found == pytest.approx([1, -2, 3, 0.5, 4], abs=0.05)
