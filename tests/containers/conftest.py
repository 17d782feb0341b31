"""Two machines with a Docker engine each, for the tests with containers: `make containers`.

The machines are namespaces on this one (see `deploy/docker/engine.py`); `make containers` has built
the images. Containers of a test are removed after it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "deploy" / "docker"), str(TOP / "tests" / "integration")]

from machines import PATIENCE, Machines  # noqa: E402 - needs the path above


def pytest_collection_modifyitems(items):
    # Engines start and images are copied in fixtures, for all tests together.
    for item in items:
        item.add_marker(pytest.mark.timeout(60 * PATIENCE, func_only=True))


@pytest.fixture(scope="session")
def both():
    """The two machines, `node7` and `node8`, with images, keys and a shared folder."""
    if os.geteuid() != 0:
        pytest.fail(
            "these tests start Docker engines, which takes root; run `make containers` as root"
        )
    with Machines() as machines:
        yield machines


@pytest.fixture
def machines(both):
    yield both
    both.tidy()


@pytest.fixture
def node7(machines):
    return machines.node7


@pytest.fixture
def node8(machines):
    return machines.node8


@pytest.fixture(scope="session", autouse=True)
def client():
    """The command line program of Docker must be there."""
    assert shutil.which("docker"), "there is no `docker`; run `make containers`"
    subprocess.run(["docker", "--version"], check=True, capture_output=True)
