"""One world per test session: these tests run on every rank of a job at once.

`tests/integration/test_parallel_mxnet.py` starts the jobs. A plain `pytest tests` collects nothing
here.
"""

import os

import pytest

if "HOROVOD_RANK" not in os.environ:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def _world():
    import horovod.mxnet as hvd

    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()
