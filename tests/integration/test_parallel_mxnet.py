"""Runs the test files of `tests/parallel_mxnet` as jobs, on 2 and 3 ranks.

MXNet needs an old NumPy, so `make mxnet` and `make matrix` run this, in environments of their own.
"""

from importlib.util import find_spec

import pytest
from ranks import TESTS, runner

pytestmark = pytest.mark.skipif(find_spec("mxnet") is None, reason="MXNet is not installed")


@pytest.mark.timeout(runner.LIMIT_SECONDS + 5)
@pytest.mark.parametrize("world", [(2, "auto"), (2, "tcp"), (3, "auto")], ids=str)
def test_every_rank_passes(world):
    problem = runner.run([TESTS / "parallel_mxnet" / "test_mxnet.py"], *world)
    assert problem is None, problem
