"""The order of collectives in programs on GPUs.

A program on a GPU runs its calls one by one, and each holds up the program until all ranks have
reached it. XLA may run independent calls in any order, and if that differed between two ranks, they
would wait for each other. So a call takes a result of the one before it as one more operand, and
the calls of a program run in the order in which it was traced.

Programs inside a program, such as the body of a loop, have an order of their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np

from horovod.jax.handlers import is_native

# Before this release, traces cannot be told apart.
OLDEST = (0, 4, 36)
# The results of the last call of each program being traced. A result that nothing uses any more is
# forgotten, and so is a program that has been traced.
_last: WeakKeyDictionary[Any, list[weakref.ref[Any]]] = WeakKeyDictionary()


def is_needed() -> bool:
    """Whether calls have to run in the order in which they are traced."""
    backend = jax.default_backend()
    return backend == "gpu" and is_native(backend) and jax.__version_info__ >= OLDEST


def previous(leaves: Sequence[Any]) -> Any:
    """A result of the call before the one with these operands; None if there is none."""
    tracers = [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)]
    # Other tracers, as those of a derivative, are replaced before the call becomes part of a
    # program.
    if not tracers or not all(_is_recorded(tracer) for tracer in tracers) or not is_needed():
        return None
    results = [result() for tracer in tracers for result in _last.get(_trace(tracer), ())]
    alive = [result for result in results if result is not None]
    return min(alive, key=lambda result: int(np.prod(result.shape)), default=None)


def remember(results: Sequence[Any]) -> None:
    """Makes the next call run after the one with these results."""
    tracers = [each for each in results if isinstance(each, jax.core.Tracer) and each.size]
    if tracers and _is_recorded(tracers[0]) and is_needed():
        _last[_trace(tracers[0])] = [weakref.ref(tracer) for tracer in tracers]


def _is_recorded(tracer: Any) -> bool:
    """Whether this is a value of a program that is being recorded."""
    return hasattr(_trace(tracer), "frame")


def _trace(tracer: Any) -> Any:
    return getattr(tracer, "_trace", None)
