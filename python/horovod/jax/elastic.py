"""Elastic training with JAX: `hvd.elastic.run` and `hvd.elastic.JaxState`.

Horovod never had it; it works like those of the other frameworks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from horovod import _native
from horovod.common.arrays import from_rank_0, keep
from horovod.common.basics import _basics
from horovod.common.elastic import FrameworkState, rejoin, run_fn
from horovod.common.objects import broadcast_object
from horovod.jax.functions import is_key

__all__ = ["JaxState", "run"]

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
    """
    # A small program that runs synchronously raises `ValueError` if it fails.
    return run_fn(func, rejoin, (RuntimeError, ValueError))


class JaxState(FrameworkState):
    """State of a training with JAX: trees such as parameters, and values such as the step.

    Each becomes an attribute; assign the new tree after every step. Copies are kept in host memory,
    so arrays may be donated.

    Args:
        **trees: Trees and values by name, of the same structure on every rank.
    """

    def __init__(self, **trees: Any) -> None:
        for name, tree in trees.items():
            setattr(self, name, tree)
        self._copies = {name: _Copy() for name in trees}
        self._size = _basics.size()
        super().__init__(broadcast_object, _basics.rank)
        self.save()

    def save(self) -> None:
        """Copy everything in memory."""
        # A failed step raises when its arrays are read: before anything is overwritten.
        found = {name: _Leaves(getattr(self, name)) for name in self._copies}
        # On a GPU, a lost rank may have interrupted it without an error of the program.
        _native.finish_on_gpu()
        for name, leaves in found.items():
            self._copies[name].take(leaves)

    def restore(self) -> None:
        """Go back to the last saved copy."""
        for name, kept in self._copies.items():
            setattr(self, name, kept.tree())

    def sync(self) -> None:
        """Give all ranks what rank 0 has saved."""
        copies = self._copies.values()
        received = [
            from_rank_0(kept.arrays, f"elastic.{name}") for name, kept in self._copies.items()
        ]
        plain = broadcast_object([kept.plain for kept in copies])
        for kept, arrays, values in zip(copies, received, plain):
            kept.arrays, kept.plain = arrays, values
        self.restore()

    def reset(self) -> None:
        """Recompile programs if the number of ranks has changed."""
        if self._size != _basics.size():
            self._size = _basics.size()
            forget_programs()


def forget_programs() -> None:
    """Makes JAX recompile every program at its next call."""
    clear: Any = jax.clear_caches
    clear()


class _Leaves:
    """The leaves of a tree as host arrays, which may share the leaves' memory."""

    def __init__(self, tree: Any) -> None:
        self.leaves, self.structure = jax.tree_util.tree_flatten(tree)
        self.arrays = [_seen(leaf) for leaf in self.leaves if _is_array(leaf)]


class _Copy:
    """A saved copy of a tree."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self.plain: list[Any] = []
        self._structure: Any = None
        self._makers: list[Callable[[Any], Any] | None] = []

    def take(self, found: _Leaves) -> None:
        """Copies the leaves."""
        self.arrays = keep(found.arrays, self.arrays)
        self.plain = [leaf for leaf in found.leaves if not _is_array(leaf)]
        self._makers = [_maker(leaf) for leaf in found.leaves]
        self._structure = found.structure

    def tree(self) -> Any:
        """A tree of copies."""
        arrays, plain = iter(self.arrays), iter(self.plain)
        leaves = [next(plain) if make is None else make(next(arrays)) for make in self._makers]
        return jax.tree_util.tree_unflatten(self._structure, leaves)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray))


def _seen(leaf: Any) -> Any:
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def _maker(leaf: Any) -> Callable[[Any], Any] | None:
    """A function that makes a leaf like this one from a saved array, without sharing memory."""
    if not _is_array(leaf):
        return None
    if isinstance(leaf, np.ndarray):
        return np.array
    if is_key(leaf):
        kind = jax.random.key_impl(leaf)
        return lambda array: jax.random.wrap_key_data(jnp.array(array), impl=kind)
    return jnp.array
