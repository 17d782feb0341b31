"""TensorFlow's data service between hosts: only its own processes get data."""

import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec

import listening
import pytest
from lab import Lab, why_not

PATIENCE = float(os.environ.get("RONDE_TEST_PATIENCE", "1"))
REASON = why_not()
pytestmark = [
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(60 * PATIENCE),
]

TRAIN = """
import os, time
import tensorflow as tf
from horovod.tensorflow.data.compute_service import TfDataServiceConfig

config = TfDataServiceConfig.read("/tmp/service.json", wait_for_file_creation=True)
numbers = tf.data.Dataset.range(200).map(lambda number: tf.fill([5000], number))
found = sorted(int(row[0]) for row in numbers.send_to_data_service(config, 0))
assert found == list(range(200)), found
os.replace(__file__, "/tmp/done")
while not os.path.exists("/tmp/go"):
    time.sleep(0.02)
config.compute_client().shutdown()
"""
# Prints what a user gets when connecting to ports or unix sockets of a host as a gRPC client.
PROBE = """
import os, socket, sys

os.setuid(int(sys.argv[1]))
for place in sys.argv[3:]:
    family = socket.AF_INET if place.isdigit() else socket.AF_UNIX
    connection = socket.socket(family)
    connection.settimeout(1)
    try:
        connection.connect((sys.argv[2], int(place)) if place.isdigit() else place)
    except OSError:
        print("shut")
        continue
    connection.settimeout(20)
    try:
        settings = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
        connection.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + settings)
        print(len(connection.recv(100)))
    except ConnectionError:
        print(0)
"""
NOBODY = 65534


def probe(prefix, user, address, places):
    """What a user gets from each port or socket, connecting from the host of the prefix."""
    command = [*prefix, sys.executable, "-c", PROBE, str(user), address, *map(str, places)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with Lab(tmp_path_factory.mktemp("lab"), 2, network="10.80.0") as lab:
        yield lab


def start(host, folder, *command):
    """Starts a command on a host, with this folder mounted as its /tmp."""
    # Python stays visible even if it is installed under /tmp.
    kept = folder / os.path.relpath(sys.prefix, "/tmp") if sys.prefix.startswith("/tmp/") else None
    own_files = 'mount --rbind "$0" /tmp && exec "$@"'
    if kept is not None:
        kept.mkdir(parents=True)
        own_files = f"mount --bind '{sys.prefix}' '{kept}' && {own_files}"
    place = ["unshare", "--mount", "sh", "-c", own_files, str(folder)]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "TMPDIR": "/tmp"}
    with (folder / "output.txt").open("w") as output:
        return subprocess.Popen(
            [*host.prefix(), *place, *command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def until(exists, processes, folder):
    end = time.monotonic() + 50 * PATIENCE
    while not exists.exists():
        outputs = [file.read_text() for file in folder.glob("*/output.txt")]
        assert time.monotonic() < end, outputs
        assert all(process.poll() is None for process in processes), outputs
        time.sleep(0.02)


def test_data_reaches_other_hosts_and_unauthenticated_peers_get_nothing(lab, tmp_path):
    first, second = lab.hosts
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (there / "train.py").write_text(TRAIN)
    module = "horovod.tensorflow.data.compute_worker"
    service = start(first, here, sys.executable, "-m", module, "/tmp/service.json")
    training = start(second, there, sys.executable, "/tmp/train.py")
    try:
        until(here / "service.json", [service, training], tmp_path)
        shutil.copy2(here / "service.json", there)
        until(there / "done", [service, training], tmp_path)
        sockets = listening.of(service.pid)
        ports = [where[2] for where in sockets if where[0] == "tcp"]
        paths = [where[1] for where in sockets if where[0] == "unix"]
        # The registry, a dispatcher and a worker of TensorFlow, and the tunnels of these two.
        assert len(ports) == 5, sockets
        assert {path.rpartition("/")[2] for path in paths} == {"dispatcher-0", "worker-0"}
        assert [where[0] for where in listening.of(training.pid)] == ["unix", "unix"]
        nothing = ["0", "0", "0", "shut", "shut"]
        assert sorted(probe(second.prefix(), 0, first.address, ports)) == nothing
        beside = ["nsenter", "-t", str(service.pid), "--net", "--mount"]
        assert sorted(probe(beside, NOBODY, "127.0.0.1", ports)) == nothing
        assert probe(beside, NOBODY, "", paths) == ["shut", "shut"]
        # An authorized user does get an answer, which shows that the probe works.
        assert all(int(received) > 0 for received in probe(beside, 0, "", paths))
        (there / "go").touch()
        assert training.wait(20 * PATIENCE) == 0, (there / "output.txt").read_text()
        assert service.wait(20 * PATIENCE) == 0, (here / "output.txt").read_text()
    finally:
        for process in (service, training):
            process.kill()
            process.wait()
    # No process is left on either host.
    assert [*here.glob("ronde-data-*"), *there.glob("ronde-data-*")] == []
