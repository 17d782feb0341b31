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


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    item.failed = getattr(item, "failed", False) or outcome.get_result().failed


@pytest.fixture
def leave(request):
    """Ends the world when no rank needs it any more: whoever leaves ends it for all."""
    import horovod.torch as hvd

    def leave():
        # The others may never come to a barrier that follows a failure.
        if hvd.is_initialized() and not getattr(request.node, "failed", False):
            hvd.barrier()
        hvd.shutdown()

    return leave


@pytest.fixture(autouse=True)
def _same_seed_everywhere():
    import torch

    torch.manual_seed(1)
