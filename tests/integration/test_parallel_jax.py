"""Runs the test files of `tests/parallel_jax` as jobs, on 2 and 3 ranks."""

import sys

import pytest
from ranks import TESTS, runner

pytestmark = pytest.mark.skipif(sys.version_info < (3, 10), reason="JAX needs Python 3.10")

FILES = sorted((TESTS / "parallel_jax").glob("test_*.py"))


@pytest.mark.timeout(runner.LIMIT_SECONDS + 5)
@pytest.mark.parametrize(
    "world", [(2, "auto"), (3, "tcp")], ids=lambda world: f"{world[0]}-{world[1]}"
)
def test_every_rank_passes(world):
    problem = runner.run(FILES, *world)
    assert problem is None, problem


def test_every_file_is_run():
    assert [file.stem for file in FILES] == ["test_collectives", "test_training"]
