"""Runs the test files of `tests/parallel_jax` as jobs, on 2 and 3 ranks."""

import importlib.util
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.version_info < (3, 10), reason="JAX needs Python 3.10")
TESTS = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("parallel_run", TESTS / "parallel" / "run.py")
runner = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runner)

FILES = sorted((TESTS / "parallel_jax").glob("test_*.py"))
WORLDS = ((2, "auto"), (3, "tcp"))


@pytest.mark.timeout(runner.LIMIT_SECONDS + 5)
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: f"{world[0]}-{world[1]}")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_rank_passes(file, world):
    problem = runner.run([file], *world)
    assert problem is None, problem


def test_every_file_is_run():
    assert [file.stem for file in FILES] == ["test_collectives", "test_training"]
