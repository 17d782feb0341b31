"""Optimizers and trainers that reduce gradients over all ranks first.

Gradients are summed, and the division by the number of ranks is folded into the factor with which
MXNet rescales them in any case.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import mxnet as mx

from horovod.common.compression import checked
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import split_list
from horovod.mxnet.compression import Compression, Compressor
from horovod.mxnet.mpi_ops import Sum, allreduce_, grouped_allreduce_

__all__ = [
    "DistributedOptimizer",
    "DistributedTrainer",
]


class DistributedOptimizer(mx.optimizer.Optimizer):
    """Optimizer whose `update` uses gradients reduced over all ranks.

    Every other attribute is that of the wrapped optimizer.

    Args:
        optimizer: An optimizer of MXNet.
        gradient_predivide_factor: Splits the division of an average: gradients are divided by this
            factor before the sum, and by `size / factor` after it (default: 1.0).
        num_groups: Number of groups of about equal length to reduce together; 0 lets the engine
            decide (default: 0).
        process_set: Ranks that take part (default: all ranks). On other ranks gradients are not
            changed.

    Raises:
        ValueError: If `optimizer` is not an optimizer of MXNet.
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise ValueError(
                f"{optimizer!r} is not an optimizer of MXNet; make one with "
                'mx.optimizer.create("sgd")'
            )
        # The base is not initialized: every attribute is that of the wrapped optimizer.
        self._optimizer = optimizer
        self._gradient_predivide_factor = gradient_predivide_factor
        self._num_groups = num_groups
        self._process_set = process_set
        optimizer.rescale_grad *= gradient_predivide_factor / (process_set.size() or 1)

    def __getattr__(self, item: str) -> Any:
        if item == "_optimizer":
            # While a copy is being made, it does not exist yet.
            raise AttributeError(item)
        return getattr(self._optimizer, item)

    def create_state(self, index: Any, weight: Any) -> Any:
        """Return a new state of the wrapped optimizer.

        Args:
            index: Index or indices of the weights.
            weight: Weight or weights.

        Returns:
            The state.
        """
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """Return a new state of the wrapped optimizer, with weights of full precision.

        Args:
            index: Index or indices of the weights.
            weight: Weight or weights.

        Returns:
            The state.
        """
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Reduce gradients and update weights.

        Args:
            index: Index or indices of the weights.
            weight: Weight or weights.
            grad: Gradient or gradients; overwritten with the reduced ones.
            state: State or states of the weights.
        """
        self._reduce(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Reduce gradients and update weights of full precision.

        Args:
            index: Index or indices of the weights.
            weight: Weight or weights.
            grad: Gradient or gradients; overwritten with the reduced ones.
            state: State or states of the weights.
        """
        self._reduce(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate of the wrapped optimizer.

        Args:
            lr: Learning rate.
        """
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """Set factors for the learning rates of weights in the wrapped optimizer.

        Args:
            args_lr_mult: Factors, by index or name.
        """
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """Set factors for the weight decay of weights in the wrapped optimizer.

        Args:
            args_wd_mult: Factors, by index or name.
        """
        self._optimizer.set_wd_mult(args_wd_mult)

    def _reduce(self, index: Any, grad: Any) -> None:
        if not self._process_set.included() or self._process_set.size() == 1:
            return
        several = isinstance(index, (tuple, list))
        names = [str(each) for each in index] if several else [str(index)]
        gradients = list(grad) if several else [grad]
        reduce_all(
            list(zip(names, gradients)),
            self._num_groups,
            self._gradient_predivide_factor,
            self._process_set,
        )


class DistributedTrainer(mx.gluon.Trainer):
    """Gluon trainer whose steps use gradients reduced over all ranks.

    Use it instead of a `DistributedOptimizer`, not with one.

    Args:
        params: Parameters to train, as `mxnet.gluon.Trainer` takes them.
        optimizer: An optimizer of MXNet, or its name.
        optimizer_params: Arguments of the optimizer, if it is given by name (default: None).
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16` or your own `Compressor` (default: `hvd.Compression.none`).
        gradient_predivide_factor: Splits the division of an average: gradients are divided by this
            factor before the sum, and by `size / factor` after it (default: 1.0).
        prefix: Prefix for the names of the gradients; use a different one for each trainer if there
            are several (default: None).
        num_groups: Number of groups of about equal length to reduce together; 0 lets the engine
            decide (default: 0).
        process_set: Ranks that take part (default: all ranks). On other ranks gradients are not
            changed.

    Raises:
        ValueError: If `compression` cannot compress.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Any = None,
        compression: type[Compressor] = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        self._compression = checked(compression)
        self._process_set = process_set
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer does not take DistributedOptimizer as its optimizer. We have "
                "unwrapped it for you.",
                stacklevel=2,
            )
            optimizer.rescale_grad *= (
                process_set.size() or 1
            ) / optimizer._gradient_predivide_factor
            optimizer = optimizer._optimizer
        # All ranks must number the parameters in the same way.
        if isinstance(params, dict) or hasattr(params, "items"):
            params = [parameter for _, parameter in sorted(params.items())]
        elif isinstance(params, (list, tuple)):
            params = sorted(params, key=lambda parameter: parameter.name)
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        self._scale *= gradient_predivide_factor / (process_set.size() or 1)
        self._gradient_predivide_factor = gradient_predivide_factor
        self._prefix = prefix or ""
        self._num_groups = num_groups

    def _allreduce_grads(self) -> None:
        if not self._process_set.included() or self._process_set.size() == 1:
            return
        named, restore = [], []
        for number, parameter in enumerate(self._params):
            if parameter.grad_req == "null":
                continue
            gradient = parameter.list_grad()[0]
            small, context = self._compression.compress(gradient)
            named.append((f"{self._prefix}{number}", small))
            restore.append((gradient, small, context))
        reduce_all(named, self._num_groups, self._gradient_predivide_factor, self._process_set)
        for gradient, small, context in restore:
            if small is not gradient:
                gradient[:] = self._compression.decompress(small, context)


def reduce_all(
    named: Sequence[tuple[str, Any]],
    num_groups: int,
    predivide_factor: float,
    process_set: ProcessSet,
) -> None:
    """Sums gradients over all ranks, in place; the first ones have the highest priority."""
    how: dict[str, Any] = {"op": Sum, "process_set": process_set}
    how["prescale_factor"] = 1.0 / predivide_factor
    if num_groups > 0:
        for number, group in enumerate(split_list(named, num_groups)):
            if group:
                name = f"{group[0][0]}:{group[-1][0]}"
                tensors = [tensor for _, tensor in group]
                grouped_allreduce_(tensors, name=name, priority=-number, **how)
        return
    for number, (name, tensor) in enumerate(named):
        allreduce_(tensor, name=name, priority=-number, **how)
