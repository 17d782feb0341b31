"""Runs the test files of `tests/parallel_jax` as jobs, on 2 and 3 ranks."""

import sys

import pytest
from ranks import TESTS, runner

pytestmark = pytest.mark.skipif(sys.version_info < (3, 10), reason="JAX needs Python 3.10")

FILES = sorted((TESTS / "parallel_jax").glob("test_*.py"))


@pytest.mark.timeout(runner.LIMIT_SECONDS + 5)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_rank_passes(file):
    problem = runner.run([file], 2, "auto")
    assert problem is None, problem


@pytest.mark.timeout(runner.LIMIT_SECONDS + 5)
def test_every_rank_of_an_odd_number_passes():
    problem = runner.run([FILES[0]], 3, "tcp")
    assert problem is None, problem


def test_every_file_is_run():
    assert [file.stem for file in FILES] == ["test_collectives", "test_training"]
