"""A job that prepares data for training jobs.

    horovodrun -np 4 python -m horovod.tensorflow.data.compute_worker FILE

Its ranks are the workers of TensorFlow's data service. Rank 0 writes FILE, which a training job
reads to find them; the job ends when the training job shuts it down.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

import horovod.tensorflow as hvd
from horovod.tensorflow.data.compute_service import SIDES, TfDataServiceConfig, compute_worker_fn
from horovod.tensorflow.data.registry import ComputeService, make_key


def main(
    dispatchers: int,
    dispatcher_side: str,
    filename: str,
    timeout: float = 60,
    one_host: bool = False,
) -> None:
    """Runs a rank of the job."""
    hvd.init()
    workers, left = divmod(hvd.size(), dispatchers)
    if left or not workers:
        raise ValueError(
            f"{hvd.size()} workers cannot be shared evenly by {dispatchers} dispatchers; start a "
            "multiple of that with -np"
        )
    service, config = None, None
    try:
        if hvd.rank() == 0:
            key = make_key()
            service = ComputeService(dispatchers, workers, key, one_host)
            config = TfDataServiceConfig(
                dispatchers, workers, dispatcher_side, service.addresses(), key, timeout
            )
        config = hvd.broadcast_object(config, name="TfDataServiceConfig")
        if service is not None:
            config.write(filename)
        compute_worker_fn(config)
        # Rank 0 runs the registry, and stays until it is no longer used.
        hvd.barrier()
    finally:
        if service is not None:
            service.shutdown()
            if os.path.exists(filename):
                os.unlink(filename)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m horovod.tensorflow.data.compute_worker",
        description="Prepare data for training jobs with TensorFlow's data service.",
    )
    parser.add_argument("configfile", help="file in which training jobs find this one")
    parser.add_argument("--dispatchers", type=int, default=1, help="number of dispatchers")
    parser.add_argument(
        "--dispatcher-side",
        default="compute",
        choices=SIDES,
        help="whether dispatchers run in this job or in the training job",
    )
    parser.add_argument(
        "--timeout", type=float, default=60, help="seconds to wait for dispatchers and workers"
    )
    parser.add_argument(
        "--one-host",
        action="store_true",
        help="listen on the loopback address only: the training job is also on this host",
    )
    found = parser.parse_args(given)
    if found.dispatchers < 1:
        parser.error("--dispatchers must be at least 1")
    return found


if __name__ == "__main__":
    wanted = arguments()
    main(
        wanted.dispatchers,
        wanted.dispatcher_side,
        wanted.configfile,
        wanted.timeout,
        wanted.one_host,
    )
