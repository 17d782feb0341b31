"""The launcher's options, as the launcher itself tells them: there is one table, and it is native.

`crates/cli/src/python.rs` is the other end.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from horovod.runner.program import horovodrun


class Option(NamedTuple):
    """One option of `horovodrun`."""

    names: list[str]
    """Its full name, then all other spellings."""
    argument: str
    """The attribute of what `parse_args` gives."""
    means: bool | None
    """What the option makes of that attribute, if it takes no value."""
    form: str
    """`flag`, `whole`, `decimal`, `fraction`, `cores`, `names` or `text`."""
    key: str | None
    """The key of the configuration file that says the same, as in `params.cycle_time_ms`."""
    choice: str | None
    """The value of the key that means this option, where the key chooses between several."""
    variable: str | None
    """What it sets in the environment of the ranks."""


class Parsed(NamedTuple):
    """A command line of `horovodrun`, taken apart."""

    arguments: dict[str, Any]
    environment: dict[str, str]


@functools.lru_cache(maxsize=1)
def table() -> tuple[Option, ...]:
    """All options of the installed `horovodrun`."""
    told = subprocess.run([horovodrun(), "__ronde-options"], capture_output=True, check=True)
    return tuple(Option(**row) for row in json.loads(told.stdout))


def parse(words: Sequence[str]) -> Parsed:
    """Takes a command line apart. Help, the version and mistakes are shown and end this process."""
    told = subprocess.run(
        [horovodrun(), "__ronde-parse", *words], stdout=subprocess.PIPE, check=False, text=True
    )
    if told.returncode != 0 or not told.stdout.startswith("{"):
        print(told.stdout, end="", flush=True)
        sys.exit(told.returncode)
    return Parsed(**json.loads(told.stdout))
