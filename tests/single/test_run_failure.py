"""What `horovod.run` raises for a rank's exception: an instance of both the rank's class and
Horovod's `RuntimeError`."""

import copy
import json
import pickle
import subprocess
import sys
import traceback

import pytest

from horovod.common.exceptions import HorovodInternalError
from horovod.runner.failure import RankFailure, describe, rank_failure, read_report

HEADLINE = "Horovod detected that one or more processes exited with non-zero status."
WHERE = "raised on rank 1 (node-b, slot 1)"


class Keyword(Exception):
    """Cannot be unpickled: `__init__` needs a value that is not in `args`."""

    def __init__(self, code, *, detail):
        super().__init__(f"{code}: {detail}")
        self.code, self.detail = code, detail


class Reduced(ValueError):
    """Defines its own pickling."""

    def __init__(self, left, right):
        super().__init__(left + right)
        self.left, self.right = left, right

    def __reduce__(self):
        return Reduced, (self.left, self.right)


class Slotted(ArithmeticError):
    __slots__ = ("extra",)


class Silent(Exception):
    def __str__(self):
        raise TypeError("no words")


class Sealed(Exception):
    """Cannot be subclassed."""

    def __init_subclass__(cls):
        raise TypeError("it is sealed")


def raised(error):
    """What the caller gets when a rank raises this error."""
    try:
        raise error
    except Exception as caught:
        return rank_failure(HEADLINE, read_report(describe(caught, "rank 1 (node-b, slot 1)")))


def printed(error):
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def decoding():
    try:
        b"\xff".decode()
    except UnicodeDecodeError as error:
        return error


def parsing():
    try:
        json.loads("{")
    except json.JSONDecodeError as error:
        return error


@pytest.mark.parametrize(
    ("error", "attributes"),
    [
        (ValueError("bad shape"), {}),
        (RuntimeError("worse"), {}),
        (Exception(), {}),
        (KeyError("key"), {}),
        (OSError(2, "not there", "a-file"), {"errno": 2, "filename": "a-file"}),
        (FileNotFoundError(2, "not there", "a-file"), {"errno": 2, "filename": "a-file"}),
        (ImportError("no", name="m", path="p"), {"name": "m", "path": "p"}),
        (StopIteration(3), {"value": 3}),
        (SyntaxError("s", ("f.py", 1, 2, "x")), {"filename": "f.py", "lineno": 1}),
        (decoding(), {"encoding": "utf-8", "start": 0}),
        (parsing(), {"pos": 1, "lineno": 1}),
        (subprocess.CalledProcessError(3, "c"), {"returncode": 3, "cmd": "c"}),
        (Keyword(3, detail="broken"), {"code": 3, "detail": "broken"}),
        (Reduced("a", "b"), {"left": "a", "right": "b"}),
        (HorovodInternalError("lost", ranks=[1], cause="signal"), {"ranks": [1], "hosts": []}),
        (Slotted("s"), {}),
        (Silent(), {}),
    ],
)
def test_the_error_has_both_classes_and_the_ranks_attributes(error, attributes):
    made = raised(error)
    assert isinstance(made, RankFailure) and isinstance(made, type(error))
    assert type(made).__name__ == type(error).__name__
    assert made.args == error.args
    for name, value in attributes.items():
        assert getattr(made, name) == value, name
    assert str(made).startswith(HEADLINE)
    # Python prints a SyntaxError in its own way, and notes only since 3.11.
    if not isinstance(error, SyntaxError) or sys.version_info >= (3, 11):
        assert printed(made).splitlines()[-1] == WHERE
    assert str(made.__cause__).startswith("on rank 1 (node-b, slot 1):\n\nTraceback")
    for same in (pickle.loads(pickle.dumps(made)), copy.copy(made)):
        assert isinstance(same, type(error)) and isinstance(same, RuntimeError)
        assert (str(same), same.args) == (str(made), made.args)
        assert printed(same) == printed(made)


def test_attributes_that_cannot_be_pickled_are_dropped():
    error = ValueError("bad shape")
    error.lock = open("/dev/null")  # noqa: SIM115 - only closed below
    try:
        made = raised(error)
    finally:
        error.lock.close()
    assert isinstance(made, ValueError) and made.args == ("bad shape",)
    assert "ValueError: bad shape" in str(made)


def test_a_class_that_cannot_be_subclassed_is_raised_in_an_exception_group():
    made = raised(Sealed("closed"))
    assert isinstance(made, RuntimeError) and "Sealed: closed" in str(made)
    assert printed(made).splitlines()[-1].strip(" |+-") in (WHERE, "Sealed: closed", "")
    if sys.version_info >= (3, 11):
        matching, _ = made.split(Sealed)
        assert matching.exceptions[0].args == ("closed",)


def test_a_class_unknown_to_the_caller_is_described_in_the_text():
    report = read_report(describe(ValueError("bad shape"), "rank 1 (node-b, slot 1)"))
    made = rank_failure(HEADLINE, report._replace(name="Theirs", whole=b"", parts=None))
    assert type(made) is RankFailure
    assert str(made).startswith(f"{HEADLINE}\nTheirs: bad shape")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups and notes need Python 3.11")
def test_exception_groups_and_notes_of_a_rank_are_kept():
    error = ExceptionGroup("several", [ValueError("a"), KeyError("b")])  # noqa: F821 - see above
    error.add_note("while loading")
    made = raised(error)
    assert [type(each) for each in made.exceptions] == [ValueError, KeyError]
    assert made.__notes__ == ["while loading", WHERE]


def test_without_notes_the_last_line_is_part_of_the_text(monkeypatch):
    monkeypatch.setattr("horovod.runner.failure._NOTES", False)
    made = raised(ValueError("bad shape"))
    assert str(made).splitlines()[-2:] == ["ValueError: bad shape", WHERE]
