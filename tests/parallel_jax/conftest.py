"""One world per test session: these tests run on every rank of a job at once.

`tests/integration/test_parallel_jax.py` starts the jobs. A plain `pytest tests` collects nothing
here.
"""

import os
import sys

import pytest

# Keras reads it when it is imported.
os.environ["KERAS_BACKEND"] = "jax"
# Where there is TensorFlow, Keras imports it only to ask whether data is of its kind, which takes
# longer than most of these tests.
sys.modules.setdefault("tensorflow", None)

if "HOROVOD_RANK" not in os.environ:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def _world():
    import horovod.jax as hvd

    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()
