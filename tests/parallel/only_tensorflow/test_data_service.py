"""Training jobs that read through TensorFlow's data service."""

import os
import socket
import subprocess
import sys
import threading
import time

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow.data.compute_service import (
    TfDataServiceConfig,
    compute_worker_fn,
    send_to_data_service,
    tf_data_service,
)
from horovod.tensorflow.data.registry import ComputeService, make_key
from horovod.tensorflow.data.tunnel import Folder

ELEMENTS = list(range(40))


def numbers():
    return tf.data.Dataset.range(len(ELEMENTS)).map(lambda number: number + 0)


def read(dataset):
    return [int(number) for number in dataset]


def everywhere(found):
    return sorted(number for part in hvd.allgather_object(found) for number in part)


@pytest.fixture
def workers(tmp_path):
    """A job of one worker, started by the first rank; it ends when it is asked to."""
    path = hvd.broadcast_object(str(tmp_path / "service.json"))
    job = None
    if hvd.rank() == 0:
        # The worker is not a rank of this job, so it must not inherit the launcher's variables.
        kept = ("HOME", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR")
        env = {name: os.environ[name] for name in kept if name in os.environ}
        command = [sys.executable, "-m", "horovod.tensorflow.data.compute_worker"]
        job = subprocess.Popen([*command, path, "--timeout", "30", "--one-host"], env=env)
    config = TfDataServiceConfig.read(path, wait_for_file_creation=True)
    yield config, path
    hvd.barrier()
    if job is not None:
        config.compute_client().shutdown()
        assert job.wait(30) == 0
        assert not os.path.exists(path)


def test_ranks_read_everything_or_share_what_a_worker_job_prepares(workers):
    config, path = workers
    assert os.stat(path).st_mode & 0o077 == 0
    assert (config.dispatchers, config.dispatcher_side, config.timeout) == (1, "compute", 30)
    assert TfDataServiceConfig.from_dict(config.to_dict()) == config
    assert "key" not in repr(config)
    whole = numbers().send_to_data_service(config, hvd.rank())
    assert sorted(read(whole)) == ELEMENTS
    shared = send_to_data_service(numbers(), config, hvd.rank(), reuse_dataset=True)
    assert everywhere(read(shared)) == ELEMENTS
    turns = (
        numbers()
        .repeat()
        .batch(2)
        .send_to_data_service(
            config, hvd.rank(), hvd.size(), "parallel_epochs", reuse_dataset=True, round_robin=True
        )
    )
    assert len(list(turns.take(3))) == 3
    with pytest.raises(ValueError, match="round_robin"):
        numbers().send_to_data_service(config, hvd.rank(), round_robin=True)
    assert len(set(hvd.allgather_object(config.key))) == 1


def test_dispatchers_in_the_training_job_with_their_own_workers():
    size, service, config = hvd.size(), None, None
    if hvd.rank() == 0:
        key = make_key()
        service = ComputeService(size, 1, key)
        config = TfDataServiceConfig(size, 1, "training", service.addresses(), key, 20)
    config = hvd.broadcast_object(config)
    worker = threading.Thread(target=compute_worker_fn, args=[config])
    worker.start()
    with tf_data_service(config, hvd.rank()) as address:
        distribute = tf.data.experimental.service.distribute("distributed_epoch", address)
        assert sorted(read(numbers().apply(distribute))) == ELEMENTS
        assert len(set(hvd.allgather_object(address))) == size
    worker.join(20)
    assert not worker.is_alive()
    with pytest.raises(RuntimeError, match="with tf_data_service"):
        numbers().send_to_data_service(config, hvd.rank())
    hvd.barrier()
    if service is not None:
        service.shutdown()
    hvd.barrier()
    with pytest.raises(ConnectionError, match="does not answer"):
        config.compute_client()


def test_unauthenticated_clients_and_missing_dispatchers():
    key = make_key()
    service = ComputeService(1, 1, key)
    config = TfDataServiceConfig(1, 1, "compute", service.addresses(), key, timeout=0.2)
    with pytest.raises(TimeoutError, match="Timed out waiting for dispatcher 0 to register"):
        config.compute_client().wait_for_dispatcher_registration(0, config.timeout)
    with pytest.raises(ValueError, match="no dispatcher 7"):
        config.compute_client().register_worker_for_dispatcher(7, 0)
    unauthenticated = TfDataServiceConfig(1, 1, "compute", service.addresses(), make_key())
    with pytest.raises(ConnectionError, match="has its own key"):
        unauthenticated.compute_client()
    with pytest.raises(ValueError, match="dispatcher_side"):
        TfDataServiceConfig(1, 1, "nowhere", {}, key)
    service.shutdown()


def test_idle_connections_do_not_block_the_registry():
    key = make_key()
    service = ComputeService(1, 1, key, one_host=True)
    (places,) = service.addresses().values()
    assert [address for address, _ in places] == ["127.0.0.1"]
    idle = [socket.create_connection(places[0]) for _ in range(200)]
    config = TfDataServiceConfig(1, 1, "compute", service.addresses(), key)
    for _ in range(5):
        config.compute_client().register_worker_for_dispatcher(0, 0)
    # The oldest idle connections were closed.
    assert idle[0].recv(1) == b""
    for connection in idle:
        connection.close()
    service.shutdown()


def eventually(check):
    """Whether a check succeeds before the test runs out of time."""
    deadline = time.monotonic() + 20
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_one_process_per_host_holds_the_folder_and_another_takes_over():
    key = make_key()
    first, second = Folder(key), Folder(key)
    # The other ranks sweep at the same time, and a sweep holds each lock for a moment.
    assert eventually(first.lock)
    assert not second.lock()
    assert os.stat(first.path).st_mode & 0o077 == 0
    first.leave()
    assert not os.path.exists(first.path)
    assert eventually(second.lock)
    # The folder of a killed process is removed when the next one starts, because its lock is free.
    forgotten = Folder(make_key())
    assert eventually(forgotten.lock)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(forgotten.socket("worker-0"))
        Folder(make_key())
        assert os.path.exists(forgotten.path)
    os.close(forgotten._held)
    Folder(make_key())
    assert eventually(lambda: not os.path.exists(forgotten.path))
    assert os.path.exists(second.path)
    second.leave()


def test_a_file_that_others_may_write_or_a_pipe_is_rejected(tmp_path):
    path = tmp_path / "service.json"
    os.mkfifo(path, 0o600)
    with pytest.raises(ValueError, match="is not a regular file"):
        TfDataServiceConfig.read(str(path), wait_for_file_creation=True)
    path.unlink()
    path.write_text("{}")
    path.chmod(0o666)
    with pytest.raises(PermissionError, match="others can write it"):
        TfDataServiceConfig.read(str(path))


def test_a_folder_that_others_may_enter_is_rejected():
    folder = Folder(make_key())
    os.mkdir(folder.path)
    os.chmod(folder.path, 0o755)
    with pytest.raises(PermissionError, match="start the workers' job again"):
        folder.lock()
    os.rmdir(folder.path)


def test_a_shutdown_request_is_confirmed_although_the_registry_ends_at_once():
    for _ in range(5):
        key = make_key()
        service = ComputeService(2, 1, key)
        config = TfDataServiceConfig(2, 1, "compute", service.addresses(), key)
        worker = config.compute_client()

        def end_with(worker=worker, service=service):
            worker.wait_for_shutdown(0)
            service.shutdown()

        registry = threading.Thread(target=end_with)
        registry.start()
        config.compute_client().shutdown()
        registry.join(20)
        assert not registry.is_alive()
