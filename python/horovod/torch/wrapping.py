"""Turns an optimizer into a distributed one, and does so again for its copies.

The class of a wrapped optimizer is created at run time, so it can be neither pickled nor copied by
name. Instead, the unwrapped optimizer is pickled together with the plan to wrap it.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from horovod.common.process_sets import ProcessSet
from horovod.torch.compression import Compressor
from horovod.torch.reducer import Reduction, reduce_alone


@dataclass(frozen=True)
class Plan:
    """What a wrapped optimizer does with its parameters."""

    reduction: Reduction
    names: dict[torch.Tensor, str]
    buckets: list[list[torch.Tensor]]
    """Parameters that are reduced together; all others are reduced one by one."""


class Wrapped(torch.optim.Optimizer):
    """What all distributed optimizers have in common; comes before the user's class in the
    bases."""

    backward_passes_per_step = 1
    """The number of backward passes before a step."""

    # Whether the user's class can handle gradients that a scaler has not unscaled.
    _fuses_scaling = False
    _plan: Plan

    @classmethod
    def __class_getitem__(cls, kind: Any) -> types.GenericAlias:
        # For annotations that are evaluated at run time.
        return types.GenericAlias(cls, kind)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes before each step.

        Args:
            passes: Number of passes, at least 1.

        Raises:
            ValueError: If `passes` is less than 1.
        """
        check_passes(passes)
        self.backward_passes_per_step = passes

    # The following are Horovod's attributes, which other libraries read.

    @property
    def op(self) -> int:
        """Reduction of the gradients."""
        return self._plan.reduction.op

    @property
    def process_set(self) -> ProcessSet:
        """Ranks that reduce their gradients together."""
        return self._plan.reduction.process_set

    @property
    def gradient_predivide_factor(self) -> float:
        """Factor by which gradients are divided before they are summed."""
        return self._plan.reduction.postscale

    @property
    def sparse_as_dense(self) -> bool:
        """Whether sparse gradients are reduced as dense tensors."""
        return self._plan.reduction.sparse_as_dense

    @property
    def _compression(self) -> type[Compressor]:
        return self._plan.reduction.compression

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        return self._plan.names

    @property
    def _requires_update(self) -> set[torch.Tensor]:
        """The parameters whose gradients, or changes, are reduced."""
        return set()

    @property
    def _handles(self) -> dict[torch.Tensor, tuple[Any, Any]]:
        """The reductions in flight: a handle and a decompression context for each parameter."""
        return {}

    def _allreduce_grad_async(self, p: torch.Tensor) -> tuple[Any, Any]:
        """Starts to reduce the gradient of one parameter; returns its entry of `_handles`."""
        return reduce_alone(p, self._parameter_names[p], self._plan.reduction)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # That module imports this one.
        from horovod.torch.optimizer import wrap

        wrapper, kind = type(self).__bases__
        plain: torch.optim.Optimizer = object.__new__(kind)
        plain.__dict__.update(_inherited(self, wrapper))
        plain.__dict__.pop("_plan")
        return wrap, (plain, self._plan, self.backward_passes_per_step)

    def __copy__(self) -> Wrapped:
        # It has the same parameters, which have one hook each: the two share a reducer.
        twin: Wrapped = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        # A method that a scheduler has put there steps this object, not the copy.
        twin.__dict__.pop("step", None)
        return twin

    def _start(self) -> None:
        """Prepares what the plan requires."""


def check_passes(passes: int) -> None:
    """Raises for a number of backward passes that is less than 1."""
    if passes <= 0:
        raise ValueError("backward_passes_per_step must be > 0")


_Kind = TypeVar("_Kind", bound=Wrapped)


def derive(optimizer: torch.optim.Optimizer, wrapper: type[_Kind]) -> _Kind:
    """An object with all attributes of the optimizer, of a class that derives from its own."""
    kind = type(optimizer)
    derived = type(kind.__name__, (wrapper, kind), {"__module__": "horovod.torch.optimizer"})
    distributed: _Kind = object.__new__(derived)
    # Copying the attributes does not require knowing how to construct the user's class.
    distributed.__dict__.update(_inherited(optimizer, wrapper))
    return distributed


def _inherited(optimizer: torch.optim.Optimizer, wrapper: type[Wrapped]) -> dict[str, Any]:
    # A method that a scheduler has put on the object is bound to the old one and is not copied.
    return {name: value for name, value in vars(optimizer).items() if not hasattr(wrapper, name)}
