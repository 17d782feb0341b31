"""What a failed `horovod.run` raises: Horovod's `RuntimeError` and the rank's exception in one.

The rank describes its exception in a `Report`, which is sent as bytes. The caller creates a class
that derives from both, so that `except RuntimeError` and `except ValueError` catch the same object.
Its text begins with Horovod's, its arguments and attributes are the rank's, its cause is the rank's
traceback, and its last line names the rank and its host.
"""

from __future__ import annotations

import builtins
import pickle
import traceback
from typing import Any, NamedTuple

__all__ = [
    "RankFailure",
    "RankTraceback",
]

FAILED = "Horovod detected that one or more processes exited with non-zero status"

# Python prints notes after an exception since 3.11.
_NOTES = hasattr(BaseException, "add_note")


class RankTraceback(Exception):
    """The traceback of an exception on its rank, as text; the cause of a `RankFailure`."""


class Report(NamedTuple):
    """An exception as described by the rank that raised it."""

    who: str
    """`rank 1 (node-b, slot 1)`"""
    name: str
    message: str
    traceback: str
    whole: bytes | None
    """The pickled exception."""
    parts: bytes | None
    """Its pickled class, arguments and attributes: some exceptions cannot be unpickled whole."""


class RankFailure(RuntimeError):
    """`horovod.run` failed because a rank raised an exception.

    Every such failure derives from it and from the class of the rank's exception.
    """

    headline: str
    report: Report

    def __str__(self) -> str:
        where = [] if _NOTES else [_where(self.report)]
        return "\n".join([self.headline, _summary(self.report), *where])

    def __reduce__(self) -> tuple[Any, ...]:
        # The class was created at run time, so another process must create it again.
        return rank_failure, (self.headline, self.report)


def describe(error: Exception, who: str) -> bytes:
    """The pickled report of an exception."""
    import cloudpickle  # type: ignore[import-untyped, unused-ignore]

    def pickled(*choices: Any) -> bytes | None:
        for choice in choices:
            try:
                whole: bytes = cloudpickle.dumps(choice)
            except Exception:
                # Some exceptions hold objects that cannot be pickled, such as a socket.
                continue
            return whole
        return None

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    name, message = type(error).__name__, _words(error)
    parts = pickled((type(error), error.args, vars(error)), (type(error), (message,), {}))
    return pickle.dumps(tuple(Report(who, name, message, text, pickled(error), parts)))


def read_report(record: bytes | bytearray | memoryview) -> Report:
    """Reads a report that `describe` pickled."""
    return Report(*pickle.loads(record))


def rank_failure(headline: str, report: Report) -> RankFailure:
    """The exception for the caller, of the rank's class if that is available."""
    made = _of_the_ranks_class(report)
    made.headline, made.report = headline, report
    made.__cause__ = traceback_of(report)
    if _NOTES:
        # Unknown to a type checker that targets older Python versions.
        vars(BaseException)["add_note"](made, _where(report))
    return made


def traceback_of(report: Report) -> RankTraceback:
    """The cause of the exception that is raised for this report."""
    return RankTraceback(f"on {report.who}:\n\n{report.traceback}")


def _of_the_ranks_class(report: Report) -> RankFailure:
    for rebuild in (_rebuilt, _assembled, _grouped):
        try:
            return rebuild(report)
        except Exception:
            # A user's class may raise anything when it is derived from or called.
            continue
    return RankFailure(report.message)


def _rebuilt(report: Report) -> RankFailure:
    """Rebuilds the exception as pickle does: calls the class with what `__reduce__` returned."""
    error = pickle.loads(report.whole or b"")
    function, arguments, *state = error.__reduce__()
    if function is not type(error):
        raise TypeError("it is not made by its class")
    made: RankFailure = _both(type(error))(*arguments)
    if state and state[0]:
        made.__setstate__(state[0])
    return made


def _assembled(report: Report) -> RankFailure:
    """Rebuilds it without calling `__init__`, which may need other arguments."""
    kind, arguments, attributes = pickle.loads(report.parts or b"")
    both = _both(kind)
    made: RankFailure = both.__new__(both, *arguments)
    made.args = arguments
    vars(made).update(attributes)
    return made


def _grouped(report: Report) -> RankFailure:
    """Puts the exception into a group, for a class that cannot be derived from."""
    group = vars(builtins)["ExceptionGroup"]
    made: RankFailure = _both(group)(report.message, [pickle.loads(report.whole or b"")])
    return made


def _both(kind: type[BaseException]) -> Any:
    # The rank's class comes first: its `__new__` and `__init__` know its layout.
    bases = (RankFailure,) if issubclass(RankFailure, kind) else (kind, RankFailure)
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    ours = {name: vars(RankFailure)[name] for name in ("__str__", "__reduce__")}
    return type(kind.__name__, bases, {**names, **ours})


def _summary(report: Report) -> str:
    return f"{report.name}: {report.message}" if report.message else report.name


def _where(report: Report) -> str:
    return f"raised on {report.who}"


def _words(error: Exception) -> str:
    try:
        return str(error)
    except Exception as second:
        return f"<its text cannot be made: {second!r}>"
