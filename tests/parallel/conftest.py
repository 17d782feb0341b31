"""One world per test session: these tests run on every rank of a job at once.

`run.py` beside this file starts the jobs. A plain `pytest tests` collects nothing here.
"""

import os

import pytest

if "HOROVOD_RANK" not in os.environ:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def _world():
    import torch

    import horovod.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture(autouse=True)
def _same_seed_everywhere():
    import torch

    torch.manual_seed(1)
