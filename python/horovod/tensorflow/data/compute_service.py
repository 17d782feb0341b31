"""TensorFlow's data service for training jobs: workers of one job prepare what another trains with.

    horovodrun -np 4 python -m horovod.tensorflow.data.compute_worker service.json
    horovodrun -np 2 python train.py service.json

where `train.py` reads the file and lets its dataset be prepared there:

    config = TfDataServiceConfig.read(path, wait_for_file_creation=True)
    dataset = dataset.send_to_data_service(config, hvd.rank(), hvd.size())

The file holds the key to the service, so that only its owner may read it: whoever has it can run
code in the processes of both jobs. Nobody else can reach them (`tunnel`).
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import itertools
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from horovod.common import environment
from horovod.common.basics import _basics
from horovod.tensorflow.data.registry import Addresses, ComputeClient
from horovod.tensorflow.data.tunnel import ServiceTunnel, tunnel_of

SIDES = ("compute", "training")
_PATIENCE_SECONDS = 600

# Ranks that share several datasets send them in the same order.
_jobs = itertools.count()
_service: Any = tf.data.experimental.service


@dataclasses.dataclass(frozen=True)
class TfDataServiceConfig:
    """What a training job must know of the job that prepares its data."""

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Addresses
    key: bytes = dataclasses.field(repr=False)
    timeout: float = 60

    def __post_init__(self) -> None:
        if self.dispatcher_side not in SIDES:
            raise ValueError(
                f"dispatcher_side is `{self.dispatcher_side}`, and can be `compute` or `training` "
                "only"
            )

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """A client of the registry."""
        return ComputeClient(self.addresses, self.key, verbose)

    def to_dict(self) -> dict[str, Any]:
        """The configuration in what JSON knows."""
        return {**self.__dict__, "key": base64.b64encode(self.key).decode()}

    @staticmethod
    def from_dict(config: dict[str, Any]) -> TfDataServiceConfig:
        """The opposite of `to_dict`."""
        addresses = {
            name: [(address, int(port)) for address, port in places]
            for name, places in config["addresses"].items()
        }
        key = base64.b64decode(config["key"])
        return TfDataServiceConfig(**{**config, "addresses": addresses, "key": key})

    def write(self, filename: str) -> None:
        """Writes a file that only its owner may read; nobody sees half of it."""
        folder, name = os.path.split(os.path.abspath(filename))
        handle, path = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(self.to_dict(), file)
            os.replace(path, filename)
        except BaseException:
            os.unlink(path)
            raise

    @staticmethod
    def read(filename: str, wait_for_file_creation: bool = False) -> TfDataServiceConfig:
        """Reads such a file; if wanted, waits until there is one, for ten minutes."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while wait_for_file_creation and not os.path.exists(filename):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"Timed out waiting for `{filename}`. Timeout after {_PATIENCE_SECONDS} "
                    "seconds. The job of `python -m horovod.tensorflow.data.compute_worker` writes "
                    "it: is it running, and is its file on a disk that both jobs see?"
                )
            time.sleep(0.1)
        return TfDataServiceConfig.from_dict(json.loads(_private_text(filename)))


def _private_text(filename: str) -> str:
    """What is in a file that only its owner may read: whoever can write it has the key.

    In a folder that others share, somebody may have put a pipe there: it is not waited for.
    """
    with open(os.open(filename, os.O_RDONLY | os.O_NONBLOCK)) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise ValueError(f"`{filename}` is not a regular file; remove it")
        if about.st_uid not in (0, os.geteuid()) or about.st_mode & 0o022:
            raise PermissionError(
                f"`{filename}` belongs to another user, or others may write it, and whoever writes "
                "it can run code here: have both jobs run as one user, who alone may write it"
            )
        return file.read()


@contextlib.contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """The address of this rank's dispatcher, which has all its workers by then.

    With dispatchers on the side of training, this rank's ends with the block, and its workers with
    it: all ranks that use it must have read what they want by then.
    """
    client, tunnel = compute_config.compute_client(), _tunnel(compute_config)
    number = rank % compute_config.dispatchers
    has_it = compute_config.dispatcher_side == "training" and rank < compute_config.dispatchers
    with contextlib.ExitStack() as stack:
        if has_it:
            stack.enter_context(_dispatcher(client, tunnel, number))
            stack.callback(client.shutdown, number)
        address = client.wait_for_dispatcher_registration(number, compute_config.timeout)
        client.wait_for_dispatcher_worker_registration(number, compute_config.timeout)
        tunnel.await_way(_servers(compute_config, number))
        yield address


def send_to_data_service(
    dataset: Any,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> Any:
    """The dataset as the data service's workers prepare it.

    Each rank gets all of it. With `reuse_dataset` the ranks of a dispatcher share it, so that each
    element goes to one of them; with `round_robin` they take turns, and `size` is their number.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError(
            "dispatchers on the side of training live in a block: use `with tf_data_service(…) as "
            "address` and tf.data.experimental.service.distribute"
        )
    if round_robin and (size is None or not reuse_dataset):
        raise ValueError("round_robin needs reuse_dataset=True, and size: the number of ranks")
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(
            _service.distribute(
                processing_mode=processing_mode,
                service=address,
                job_name=f"job_{next(_jobs)}" if reuse_dataset else None,
                consumer_index=rank if round_robin else None,
                num_consumers=size if round_robin else None,
            )
        )


def compute_worker_fn(compute_config: TfDataServiceConfig) -> None:
    """Works for the data service, on each rank of the workers' job, until training has ended."""
    rank = _basics.rank() if _basics.is_initialized() else environment.rank()
    number, place = divmod(rank, compute_config.workers_per_dispatcher)
    client, tunnel = compute_config.compute_client(), _tunnel(compute_config)
    with contextlib.ExitStack() as stack:
        if compute_config.dispatcher_side == "compute" and place == 0:
            stack.enter_context(_dispatcher(client, tunnel, number))
        address = client.wait_for_dispatcher_registration(number, compute_config.timeout)
        tunnel.await_way([_dispatcher_name(number)])
        name = _worker_name(rank)

        def start(port: int) -> Any:
            return _service.WorkerServer(
                _service.WorkerConfig(
                    dispatcher_address=address.partition("://")[2],
                    worker_address=tunnel.address(name),
                    port=port,
                )
            )

        stack.enter_context(tunnel.served(name, start))
        client.register_worker_for_dispatcher(number, rank)
        client.wait_for_shutdown(number)


@contextlib.contextmanager
def _dispatcher(client: ComputeClient, tunnel: ServiceTunnel, number: int) -> Iterator[None]:
    def start(port: int) -> Any:
        return _service.DispatchServer(_service.DispatcherConfig(port=port))

    name = _dispatcher_name(number)
    with tunnel.served(name, start) as server:
        protocol = server.target.partition("://")[0]
        client.register_dispatcher(number, f"{protocol}://{tunnel.address(name)}")
        yield


def _tunnel(config: TfDataServiceConfig) -> ServiceTunnel:
    return tunnel_of(config.addresses, config.key, config.timeout)


def _servers(config: TfDataServiceConfig, dispatcher: int) -> list[str]:
    """The names of a dispatcher and its workers."""
    first = dispatcher * config.workers_per_dispatcher
    workers = range(first, first + config.workers_per_dispatcher)
    return [_dispatcher_name(dispatcher), *map(_worker_name, workers)]


def _dispatcher_name(number: int) -> str:
    return f"dispatcher-{number}"


def _worker_name(rank: int) -> str:
    return f"worker-{rank}"


tf.data.Dataset.send_to_data_service = send_to_data_service
