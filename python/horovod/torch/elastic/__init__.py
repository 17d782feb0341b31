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
    """Make a training function elastic, so that it survives lost ranks and changing hosts.

    When a rank is lost, or hosts are added or removed, the remaining ranks regroup without a
    restart and call the function again with the state of rank 0, which returns to the last
    `state.commit()` if a rank was lost. Do not call collectives before the first call.

    Args:
        func: Function whose first argument is a state; it returns when training is done.

    Returns:
        A function that takes a state and the other arguments of `func`, and returns what `func`
        returns.

    Example:
        ```python
        import torch
        import horovod.torch as hvd

        hvd.init()
        model = torch.nn.Linear(10, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


        @hvd.elastic.run
        def train(state):
            while state.batch < 10:
                optimizer.zero_grad()
                state.model(torch.randn(32, 10)).square().mean().backward()
                optimizer.step()
                state.batch += 1
                state.commit()


        train(hvd.elastic.TorchState(model, optimizer, batch=0))
        ```
    """
    return run_fn(func, rejoin)
