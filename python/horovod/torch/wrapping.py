"""Turning an optimizer into one that works with other ranks, and doing so again with its copies.

A wrapped optimizer's class is made at run time, so it can be neither pickled nor copied by name.
What travels instead is the optimizer as it would be unwrapped, and the plan to wrap it.
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
    """What all distributed optimizers have in common; stands before the user's class."""

    backward_passes_per_step = 1
    """How many backward passes there are before a step."""

    # Whether the user's class knows what to do with gradients that a scaler has not unscaled.
    _fuses_scaling = False
    _plan: Plan

    @classmethod
    def __class_getitem__(cls, kind: Any) -> types.GenericAlias:
        # For annotations that are looked at while the program runs.
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

    # What follows are Horovod's attributes, which other libraries look at.

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
        """Factor by which gradients are divided before they are added up."""
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
        """What is being reduced: a handle and what decompressing needs, for each parameter."""
        return {}

    def _allreduce_grad_async(self, p: torch.Tensor) -> tuple[Any, Any]:
        """Starts to reduce the gradient of one parameter; gives what `_handles` has of it."""
        return reduce_alone(p, self._parameter_names[p], self._plan.reduction)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # That module uses this one.
        from horovod.torch.optimizer import wrap

        wrapper, kind = type(self).__bases__
        plain: torch.optim.Optimizer = object.__new__(kind)
        plain.__dict__.update(_inherited(self, wrapper))
        plain.__dict__.pop("_plan")
        return wrap, (plain, self._plan, self.backward_passes_per_step)

    def __copy__(self) -> Wrapped:
        # It has the same parameters, and these have one hook each: the two share all work.
        twin: Wrapped = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        # What a scheduler has put there steps this object, not the twin.
        twin.__dict__.pop("step", None)
        return twin

    def _start(self) -> None:
        """Makes ready what the plan says."""


def check_passes(passes: int) -> None:
    """Refuses a number of backward passes before which no step could come."""
    if passes <= 0:
        raise ValueError("backward_passes_per_step must be > 0")


_Kind = TypeVar("_Kind", bound=Wrapped)


def derive(optimizer: torch.optim.Optimizer, wrapper: type[_Kind]) -> _Kind:
    """An object that has all the optimizer has, of a class that comes before its own."""
    kind = type(optimizer)
    derived = type(kind.__name__, (wrapper, kind), {"__module__": "horovod.torch.optimizer"})
    distributed: _Kind = object.__new__(derived)
    # Taking over the attributes needs no knowledge of how the user's class is constructed.
    distributed.__dict__.update(_inherited(optimizer, wrapper))
    return distributed


def _inherited(optimizer: torch.optim.Optimizer, wrapper: type[Wrapped]) -> dict[str, Any]:
    # A method that a scheduler has put on the object is bound to the old one and stays behind.
    return {name: value for name, value in vars(optimizer).items() if not hasattr(wrapper, name)}
