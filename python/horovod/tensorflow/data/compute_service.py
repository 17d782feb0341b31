"""TensorFlow's data service for training jobs: one job prepares the data of another.

    horovodrun -np 4 python -m horovod.tensorflow.data.compute_worker service.json
    horovodrun -np 2 python train.py service.json

where `train.py` reads the file and has its dataset prepared there:

    config = TfDataServiceConfig.read(path, wait_for_file_creation=True)
    dataset = dataset.send_to_data_service(config, hvd.rank(), hvd.size())

The file contains the key of the service, so only its owner can read it: anyone who has the key can
run code in the processes of both jobs. No one else can reach them (`tunnel`).
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

__all__ = [
    "TfDataServiceConfig",
    "compute_worker_fn",
    "send_to_data_service",
    "tf_data_service",
]

SIDES = ("compute", "training")
_PATIENCE_SECONDS = 600

# Ranks that share several datasets must send them in the same order.
_jobs = itertools.count()
_service: Any = tf.data.experimental.service


@dataclasses.dataclass(frozen=True)
class TfDataServiceConfig:
    """What a training job must know about the job that prepares its data.

    Args:
        dispatchers: Number of dispatchers of the data service.
        workers_per_dispatcher: Number of workers of each.
        dispatcher_side: Where dispatchers run: `compute` or `training`.
        addresses: Where the registry of the service listens, by network interface.
        key: Key of the service, 32 bytes.
        timeout: Seconds to wait for dispatchers and workers (default: 60).

    Raises:
        ValueError: If `dispatcher_side` is something else.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Addresses
    key: bytes = dataclasses.field(repr=False)
    timeout: float = 60

    def __post_init__(self) -> None:
        if self.dispatcher_side not in SIDES:
            raise ValueError(
                f"dispatcher_side is `{self.dispatcher_side}`, but must be `compute` or `training`"
            )

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """Return a client of the registry.

        Args:
            verbose: 2 or more to print what is registered (default: 1).

        Returns:
            The client; its `shutdown()` ends the job that prepares the data.
        """
        return ComputeClient(self.addresses, self.key, verbose)

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as a dictionary that can be written as JSON.

        Returns:
            The dictionary.
        """
        return {**self.__dict__, "key": base64.b64encode(self.key).decode()}

    @staticmethod
    def from_dict(config: dict[str, Any]) -> TfDataServiceConfig:
        """Create the configuration from a dictionary.

        Args:
            config: What `to_dict` returned.

        Returns:
            The configuration.
        """
        addresses = {
            name: [(address, int(port)) for address, port in places]
            for name, places in config["addresses"].items()
        }
        key = base64.b64decode(config["key"])
        return TfDataServiceConfig(**{**config, "addresses": addresses, "key": key})

    def write(self, filename: str) -> None:
        """Write the configuration to a file that only its owner can read.

        The file appears at once, never half written.

        Args:
            filename: Path of the file.
        """
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
        """Read the configuration from a file.

        Args:
            filename: Path of the file.
            wait_for_file_creation: Whether to wait up to 10 minutes until there is one (default:
                False).

        Returns:
            The configuration.

        Raises:
            TimeoutError: If the file does not appear.
            PermissionError: If others can write the file.
            ValueError: If it is not a regular file.
        """
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
    """Reads a file that only its owner can write: anyone who can write it chooses the key.

    In a shared folder the file may be another user's pipe, so it is opened without waiting.
    """
    with open(os.open(filename, os.O_RDONLY | os.O_NONBLOCK)) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise ValueError(f"`{filename}` is not a regular file; remove it")
        if about.st_uid not in (0, os.geteuid()) or about.st_mode & 0o022:
            raise PermissionError(
                f"`{filename}` belongs to another user, or others can write it, and anyone who "
                "can write it can run code here: run both jobs as one user, and let only that user "
                "write it"
            )
        return file.read()


@contextlib.contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """Provide the address of this rank's dispatcher inside a `with` block.

    If dispatchers run in the training job, this rank's ends with the block.

    Args:
        compute_config: Configuration of the job that prepares the data.
        rank: Rank of this process in the training job.

    Yields:
        The address, for `tf.data.experimental.service.distribute`.

    Raises:
        TimeoutError: If the dispatcher or its workers do not register in time.
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
    """Let the workers of the data service prepare a dataset.

    Also a method of `tf.data.Dataset`.

    Args:
        dataset: A `tf.data.Dataset`.
        compute_config: Configuration of the job that prepares the data.
        rank: Rank of this process in the training job.
        size: Number of ranks of the training job; needed with `round_robin` (default: None).
        processing_mode: How workers share the dataset, as `tf.data.experimental.service.distribute`
            takes it (default: `distributed_epoch`).
        reuse_dataset: Whether ranks share one dataset, each element going to one of them, instead
            of each getting all of it (default: False).
        round_robin: Whether ranks that share take turns (default: False).

    Returns:
        The prepared dataset.

    Raises:
        RuntimeError: If dispatchers run in the training job; use `tf_data_service` then.
        ValueError: If `round_robin` is used without `reuse_dataset` or `size`.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError(
            "dispatchers in the training job exist only inside a block: use `with "
            "tf_data_service(…) as address` and tf.data.experimental.service.distribute"
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
    """Work for the data service until training ends; call it on each rank of the workers' job.

    Args:
        compute_config: Configuration of the job that prepares the data.
    """
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
    """The names of the servers of a dispatcher and its workers."""
    first = dispatcher * config.workers_per_dispatcher
    workers = range(first, first + config.workers_per_dispatcher)
    return [_dispatcher_name(dispatcher), *map(_worker_name, workers)]


def _dispatcher_name(number: int) -> str:
    return f"dispatcher-{number}"


def _worker_name(rank: int) -> str:
    return f"worker-{rank}"


tf.data.Dataset.send_to_data_service = send_to_data_service
