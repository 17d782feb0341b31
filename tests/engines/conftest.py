"""Real engines for the tests of `horovod.spark` and `horovod.ray`, each started once.

Spark: a standalone master and two workers with two cores each, as processes of this machine. Ray: a
cluster of two nodes with two CPUs each. Tests marked `long` run in `make engines` only.
"""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))


def pytest_addoption(parser):
    parser.addoption("--engines", choices=["quick", "all"], default="quick", help="which tests run")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: runs in `make engines` only")


def pytest_collection_modifyitems(config, items):
    # Engines start in fixtures, for all tests together.
    for item in items:
        item.add_marker(pytest.mark.timeout(60, func_only=True))
    if config.getoption("--engines") == "all":
        return
    long = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory):
    """A standalone Spark cluster; its `url` is the master's address."""
    if find_spec("pyspark") is None:
        pytest.skip("pyspark is not installed")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, which is not installed")
    from spark_cluster import SparkCluster

    # Executors start this Python; without it, the first `python3` on their PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with SparkCluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def ray_cluster():
    """A Ray cluster of two nodes, to which this process is connected."""
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    from ray_cluster import RayCluster

    with RayCluster() as cluster:
        yield cluster
