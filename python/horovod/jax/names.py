"""Names of collectives inside compiled programs, by which ranks match them.

A program is traced once and runs many times, and one rank may trace it more often than another, for
example for a smaller last batch. So a name is not a running number. It consists of the place in the
source that calls the collective, up to the function that JAX traces, and of how often this place
has been reached in the same trace.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

import jax

_passed: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()
_without_trace = itertools.count()


def name_here(kind: str, tracer: Any) -> str:
    """The name of a collective that is being traced; `tracer` is one of its operands."""
    place = _place()
    trace = _trace_of(tracer)
    try:
        counter = _passed.setdefault(trace, Counter())
    except TypeError:
        # An unknown JAX: a running number works as long as all ranks trace in the same way.
        return f"jit.{kind}.{place}.{next(_without_trace)}"
    number = counter[place]
    counter[place] += 1
    return f"jit.{kind}.{place}.{number}"


def _place() -> str:
    """The calls from where JAX started tracing to here; only the nearest one is readable."""
    nearest = ""
    digest = hashlib.sha256()
    frame = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        top = module.partition(".")[0]
        if nearest and top in ("jax", "jaxlib"):
            break
        if not module.startswith("horovod.jax") and top not in ("jax", "jaxlib"):
            call = f"{frame.f_code.co_name}:{frame.f_lineno}"
            nearest = nearest or call
            digest.update(f"{module}.{call};".encode())
        if frame.f_back is None:
            break
        frame = frame.f_back
    return f"{nearest}.{digest.hexdigest()[:8]}"


def _trace_of(tracer: Any) -> Any:
    """An object that identifies the program being traced, whatever transformations it contains."""
    stacks = getattr(jax.core, "thread_local_state", None)
    if stacks is not None:
        # Until 0.4.35 traces were on a stack, and equal if they had the same depth.
        frames = [getattr(main, "jaxpr_stack", ()) for main in stacks.trace_state.trace_stack.stack]
        return next((recorded[0] for recorded in frames if recorded), None)
    found = trace = getattr(tracer, "_trace", None)
    while trace is not None:
        # Traces that record a program have a frame; the outermost of them is the program itself.
        found = trace if hasattr(trace, "frame") else found
        trace = getattr(trace, "parent_trace", None)
    return found
