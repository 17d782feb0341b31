"""The state of a training with PyTorch: models, optimizers, samplers, and plain values.

Objects with a handler are copied, restored and sent in their own way; everything else is a value of
`ObjectState`. A copy reuses the memory of the previous one, so a commit costs about as much as
copying model and optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod import _native
from horovod.common.elastic import FrameworkState
from horovod.torch.elastic.copies import copied
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    load_optimizer,
)
from horovod.torch.mpi_ops import rank

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class StateHandler:
    """How one kind of object is saved, restored and sent to all ranks.

    This one works for objects with `state_dict` and `load_state_dict`.

    Args:
        value: The object.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self._saved: Any = None
        self.save()

    def save(self) -> None:
        """Keep a copy of the object's state."""
        self._saved = copied(self.value.state_dict(), self._saved)

    def restore(self) -> None:
        """Give the object the state that was saved last."""
        self.value.load_state_dict(copied(self._saved))

    def sync(self) -> None:
        """Give the object on all ranks the state of rank 0."""
        # Rank 0 also loads its own state: what an object derives from it, such as the share of a
        # sampler, must be the same everywhere.
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))

    def reset(self) -> None:
        """Adapt the object to a new set of ranks."""

    def set_value(self, value: Any) -> None:
        """Handle another object from now on.

        Args:
            value: The object.
        """
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    """Handles a model: its parameters and buffers.

    Args:
        value: The object.
    """

    def restore(self) -> None:
        """Copy the parameters back; they stay the same tensors."""
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        """Overwrite parameters and buffers with those of rank 0."""
        state = self.value.state_dict()
        tensors = {name: each for name, each in state.items() if isinstance(each, torch.Tensor)}
        broadcast_parameters(tensors, root_rank=0)
        if len(tensors) != len(state):
            # Modules may add arbitrary objects, which are sent without tensors.
            rest = {name: each for name, each in state.items() if name not in tensors}
            state.update(broadcast_object(rest))
            self.value.load_state_dict(state)


class OptimizerStateHandler(StateHandler):
    """Handles an optimizer: its options and its state.

    Args:
        value: The object.
    """

    def restore(self) -> None:
        """Restore the state, and clear the gradients of an unfinished step."""
        load_optimizer(self.value, copied(self._saved))
        self.value.zero_grad()

    def sync(self) -> None:
        """Overwrite the state with that of rank 0."""
        broadcast_optimizer_state(self.value, root_rank=0)


class SamplerStateHandler(StateHandler):
    """Handles a sampler: the progress of the epoch.

    Args:
        value: The object.
    """

    def reset(self) -> None:
        """Split the remaining samples among the current ranks."""
        self.value.reset()


# Older PyTorch has it under another name.
_GradScaler: type = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)

_handler_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    (torch.optim.lr_scheduler.LRScheduler, StateHandler),
    (torch.optim.lr_scheduler.ReduceLROnPlateau, StateHandler),
    (_GradScaler, StateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Return the handlers for each type of object.

    Returns:
        Pairs of a class and its handler; the first that fits an object is used.
    """
    return _handler_registry


def set_handler_registry(registry: Sequence[tuple[type, type[StateHandler]]]) -> None:
    """Replace the list of handlers, for states that are created from now on.

    Args:
        registry: Pairs of a class and its handler.
    """
    global _handler_registry
    _handler_registry = list(registry)


class TorchState(FrameworkState):
    """State of a training with PyTorch: model, optimizer and other objects and values.

    Each becomes an attribute. Models, optimizers, samplers, schedulers and gradient scalers are
    saved through their `state_dict`; other values are kept as they are, so assign new ones instead
    of changing lists. You can also assign another model or optimizer to the attribute.

    Args:
        model: The model (default: None).
        optimizer: Its optimizer (default: None).
        **kwargs: Other objects and values by name, such as `batch=0`.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        everything = {"model": model, "optimizer": optimizer, **kwargs}
        handlers = {name: _handler(value) for name, value in everything.items()}
        self._handlers = {name: each for name, each in handlers.items() if each is not None}
        for name, handler in self._handlers.items():
            super().__setattr__(name, handler.value)
        values = {name: each for name, each in everything.items() if name not in self._handlers}
        super().__init__(broadcast_object, rank, **values)

    def save(self) -> None:
        """Copy everything in memory."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Go back to the last saved copy."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Give all ranks the state of rank 0, and save it."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()
        _native.finish_on_gpu()
        for handler in self._handlers.values():
            handler.save()

    def reset(self) -> None:
        """Adapt what depends on the ranks, such as samplers."""
        for handler in self._handlers.values():
            handler.reset()
        super().reset()

    def __setattr__(self, name: str, value: Any) -> None:
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None:
            handler.set_value(value)
        super().__setattr__(name, value)

    def _array(self, numbers: Sequence[float]) -> Any:
        return torch.tensor(numbers, dtype=torch.float64)


def _handler(value: Any) -> StateHandler | None:
    for kind, handler in _handler_registry:
        if isinstance(value, kind):
            return handler(value)
    return None
