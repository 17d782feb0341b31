"""One world per test session: these tests run on every rank of a job at once.

`make mxnet` starts the jobs, in an environment of their own. A plain `pytest tests` collects
nothing here.
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
