"""Runs the test files of `tests/parallel_tf` as jobs, on 2 and 3 ranks."""

from importlib.util import find_spec

import pytest
from ranks import TESTS, runner

# Importing it here would be more than slow: TensorFlow and torch's Triton do not bear each other.
pytestmark = pytest.mark.skipif(
    find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)

FOLDER = TESTS / "parallel_tf"

FILES = sorted(FOLDER.glob("test_*.py"))
# Importing TensorFlow takes longer than most of them, so that a job runs half of them; all in one
# would take too long where there are few processors.
FIRST = ("test_compiled", "test_elastic", "test_keras")
HALVES = {
    "first": [file for file in FILES if file.stem in FIRST],
    "second": [file for file in FILES if file.stem not in FIRST],
}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")


@pytest.mark.timeout(runner.LIMIT_SECONDS + 5)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("half", HALVES)
def test_every_rank_passes(half, size):
    problem = runner.run(HALVES[half], size, "auto")
    assert problem is None, problem


@pytest.mark.timeout(runner.LIMIT_SECONDS + 5)
def test_every_rank_passes_with_keras_2(monkeypatch):
    if find_spec("tf_keras") is None:
        pytest.skip("Keras 2 is not installed")
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    files = [FOLDER / "test_elastic.py", FOLDER / "test_keras.py"]
    problem = runner.run(files, 2, "auto")
    assert problem is None, problem
