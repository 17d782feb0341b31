"""Elastic training with PyTorch: `hvd.elastic.run`, `hvd.elastic.TorchState`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from horovod.common.elastic import rejoin, run_fn
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]

_Result = TypeVar("_Result")


def run(func: Callable[..., _Result]) -> Callable[..., _Result]:
    """Makes a function of a state, and what else it takes, one that outlives its world.

    When a rank is lost, or hosts come or go, the function is called again, in the next world, with
    the state of rank 0. Nothing may be sent between ranks before the first call.
    """
    return run_fn(func, rejoin)
