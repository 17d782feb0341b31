"""The order of collectives in programs on GPUs.

A program on a GPU runs its calls one by one, and each holds up the program until all ranks have
reached it. XLA may run independent calls in any order, and if that differed between two ranks, they
would wait for each other; programs of two ranks differ, for instance, if a rank gets no rows. So
every call has a token as one more result, which the next call takes as one more operand, and the
calls of a program run in the order in which it was traced.

Programs inside a program, such as the body of a loop, have an order of their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import jax

from horovod.jax.handlers import is_native

# Before this release, traces cannot be told apart.
OLDEST = (0, 4, 36)
# The results of the last call of each program being traced, and their token, by the number of the
# result that keeps it. If nothing uses its results any more, a call is not part of the program.
_last: WeakKeyDictionary[Any, list[weakref.ref[Any]]] = WeakKeyDictionary()
_tokens: dict[int, Any] = {}


def is_needed() -> bool:
    """Whether calls have to run in the order in which they are traced."""
    backend = jax.default_backend()
    return backend == "gpu" and is_native(backend) and jax.__version_info__ >= OLDEST


def applies_to(leaves: Sequence[Any]) -> bool:
    """Whether a call with these operands has to keep the order of its program."""
    tracers = [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)]
    # Other tracers, as those of a derivative, are replaced before the call becomes part of a
    # program.
    return bool(tracers) and all(map(_is_recorded, tracers)) and is_needed()


def previous(leaves: Sequence[Any]) -> Any:
    """The token of the call before the one with these operands; None if there is none."""
    tracers = [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)]
    results = [result() for tracer in tracers for result in _last.get(_trace(tracer), ())]
    return next((_tokens[id(result)] for result in results if result is not None), None)


def remember(results: Sequence[Any], token: Any) -> None:
    """Makes the next call run after the one with these results and this token."""
    _last[_trace(token)] = [weakref.ref(result) for result in results]
    for result in results:
        _tokens[id(result)] = token
        # Not longer than the result: it would keep the whole program alive.
        weakref.finalize(result, _tokens.pop, id(result), None).atexit = False


def _is_recorded(tracer: Any) -> bool:
    """Whether this is a value of a program that is being recorded."""
    return hasattr(_trace(tracer), "frame")


def _trace(tracer: Any) -> Any:
    return getattr(tracer, "_trace", None)
