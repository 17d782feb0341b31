"""One world per test session: these tests run on all ranks of a job at once.

`tests/integration/test_parallel_tf.py` starts the jobs; a plain `pytest` collects nothing here.
"""

import os

import pytest

if "HOROVOD_RANK" not in os.environ:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def _world():
    import tensorflow as tf

    import horovod.tensorflow as hvd

    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()


@pytest.fixture(autouse=True)
def _same_seed_everywhere():
    import tensorflow as tf

    tf.keras.utils.set_random_seed(1)
