"""What type checkers infer about `horovod.torch`; see `make python-types`."""

from __future__ import annotations

import torch
from typing_extensions import assert_type

import horovod.torch as hvd
from horovod.torch.optimizer import WrappedOptimizer


class MyAdam(torch.optim.Adam):
    """A user-defined optimizer."""

    def warmth(self) -> int:
        """A method that torch's optimizers do not have."""
        return 1


def takes_sgd(optimizer: torch.optim.SGD) -> None:
    """Accepts only the class of the user's optimizer."""


def keeps_the_users_class(parameters: list[torch.Tensor]) -> None:
    wrapped = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1))
    assert_type(wrapped, WrappedOptimizer[torch.optim.SGD])
    takes_sgd(wrapped)
    torch.optim.lr_scheduler.StepLR(wrapped, 1)
    mine = hvd.DistributedOptimizer(MyAdam(parameters), op=hvd.Sum)
    assert_type(mine, WrappedOptimizer[MyAdam])
    mine.warmth()


def has_our_methods(parameters: list[torch.Tensor]) -> None:
    # Like most scripts: the variable holds the plain optimizer first.
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer)
    assert_type(optimizer, WrappedOptimizer[torch.optim.SGD])
    assert_type(optimizer.synchronize(), None)
    with optimizer.skip_synchronize() as nothing:
        assert_type(nothing, None)
    assert_type(optimizer.set_backward_passes_per_step(2), None)
    assert_type(optimizer.backward_passes_per_step, int)
    assert_type(optimizer.zero_grad(), None)
    assert_type(optimizer.process_set, hvd.ProcessSet)


def refuses_what_is_wrong(model: torch.nn.Module, parameters: list[torch.Tensor]) -> None:
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1))
    # mypy warns about unused `ignore` comments, so each of these lines must be an error.
    hvd.DistributedOptimizer(model)  # type: ignore[type-var]
    hvd.DistributedOptimizer(optimizer, compress=hvd.Compression.fp16)  # type: ignore[call-arg]
    optimizer.set_backward_passes_per_step("2")  # type: ignore[arg-type]


def reductions_are_members() -> None:
    assert_type(hvd.Average, hvd.ReduceOp)
    assert_type(hvd.allreduce(torch.ones(1), op=hvd.Sum), torch.Tensor)
    assert_type(hvd.allreduce(torch.ones(1), op=1), torch.Tensor)


def alltoall_returns_a_pair_if_it_is_given_splits() -> None:
    assert_type(hvd.alltoall(torch.ones(2)), torch.Tensor)
    assert_type(hvd.alltoall(torch.ones(2), splits=[1, 1]), tuple[torch.Tensor, torch.Tensor])
