"""The function of a job that was started from Python: how it is sent, and what comes back.

`horovod.run` and the jobs of engines such as Spark and Ray share this: a function is pickled with
the caller's search path, and the results or the first failure become values or an exception here.
"""

from __future__ import annotations

import linecache
import pickle
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from horovod.runner.arguments import _HorovodArgs
from horovod.runner.caller import Call, Outcome
from horovod.runner.failure import FAILED, rank_failure, read_report, traceback_of


def pickled(func: Any, args: Any, kwargs: Mapping[str, Any] | None) -> bytes:
    """A function and its arguments, for the ranks; TypeError if it cannot be called with them."""
    # Imported here, so that importing this module stays cheap.
    import cloudpickle  # type: ignore[import-untyped, unused-ignore]

    # Two layers: the search path must be set before modules on it are unpickled.
    inner = cloudpickle.dumps((func, _checked(func, args), dict(kwargs or {})))
    return pickle.dumps((list(sys.path), _cells(), inner))


def finish(call: Call, wanted: _HorovodArgs, all_results: bool = False) -> list[Any]:
    """Waits for a job and returns its results, of an elastic one the fewest that it may have."""
    outcome = call.wait()
    if outcome.code != 0:
        raise failure(call, outcome, wanted)
    count = None if all_results else wanted.fewest()
    processes = call.finishers()[:count] if wanted.elastic else None
    return _results(call, wanted.fewest(), processes)


def failure(call: Call, outcome: Outcome, wanted: _HorovodArgs) -> Exception:
    """The exception for a job that failed."""
    if not call.started:
        kind = ValueError if outcome.code == 2 else RuntimeError
        return kind(outcome.text.strip())
    raised = [process for process in call.complete if call.results[process][:1] == b"e"]
    headline = f"{FAILED}:\n{outcome.text.strip()}"
    if wanted.use_mpi:
        # Only the order in which the reports arrived shows which rank failed first.
        headline, blamed = outcome.text.strip(), raised[0] if raised else None
    elif wanted.elastic:
        # Several ranks may have raised exceptions; the last one is closest to the end of the job.
        blamed = raised[-1] if raised else None
    else:
        blamed = outcome.first if outcome.first in raised else None
        if blamed is not None:
            headline = f"{FAILED}.\nProcess name: {blamed}\nExit code: {outcome.code}"
    if blamed is not None:
        return rank_failure(headline, read_report(memoryview(call.results[blamed])[1:]))
    plain = RuntimeError(headline)
    if raised:
        plain.__cause__ = traceback_of(read_report(memoryview(call.results[raised[-1]])[1:]))
    return plain


def _checked(func: Any, args: Any) -> tuple[Any, ...]:
    """The arguments as a tuple, if the function can be called with them."""
    if not callable(func):
        raise TypeError(
            f"func is of type `{type(func).__name__}`, not a function; pass the function itself "
            "and its arguments separately: horovod.run(train, args=(20,), num_proc=2)"
        )
    if isinstance(args, (str, bytes)) or not isinstance(args, Iterable):
        raise TypeError(
            f"args is of type `{type(args).__name__}`; pass a tuple, such as args=({args!r},)"
        )
    return tuple(args)


def _cells() -> dict[str, Any]:
    """The source of a notebook's cells, for tracebacks: entries without a time are in no file."""
    known = linecache.cache.items()
    return {name: entry for name, entry in known if len(entry) == 4 and entry[1] is None}


def _results(call: Call, count: int, processes: list[int] | None) -> list[Any]:
    early = (
        "ended with code 0 before its function returned; does it call `sys.exit()` or `os._exit()`?"
    )
    if processes is None:
        processes = list(range(count))
        missing = [rank for rank in processes if rank not in call.complete]
        if missing:
            raise RuntimeError(f"rank {missing[0]} {early}")
    elif len(processes) < count:
        raise RuntimeError(f"{len(processes)} of {count} ranks have returned, and another {early}")
    values = []
    for process in processes:
        # One at a time, so that no result is in memory twice for long.
        values.append(pickle.loads(memoryview(call.results.pop(process))[1:]))
    return values
