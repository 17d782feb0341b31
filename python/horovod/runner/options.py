"""The launcher's options, as the launcher itself reports them: there is only one table.

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
    """Its full name, then all other names."""
    argument: str
    """The attribute in the result of `parse_args`."""
    means: bool | None
    """The value of that attribute if the option is given, for options without a value."""
    form: str
    """`flag`, `whole`, `decimal`, `fraction`, `cores`, `names` or `text`."""
    key: str | None
    """The equivalent key of the configuration file, such as `params.cycle_time_ms`."""
    choice: str | None
    """The value of the key that selects this option, if the key chooses between several."""
    variable: str | None
    """The variable that it sets in the environment of the ranks."""


class Parsed(NamedTuple):
    """A parsed command line of `horovodrun`."""

    arguments: dict[str, Any]
    environment: dict[str, str]


@functools.lru_cache(maxsize=1)
def table() -> tuple[Option, ...]:
    """All options of the installed `horovodrun`."""
    result = subprocess.run([horovodrun(), "__ronde-options"], capture_output=True, check=True)
    return tuple(Option(**row) for row in json.loads(result.stdout))


def parse(words: Sequence[str]) -> Parsed:
    """Parses a command line. Help, the version and errors are printed and end this process."""
    result = subprocess.run(
        [horovodrun(), "__ronde-parse", *words], stdout=subprocess.PIPE, check=False, text=True
    )
    if result.returncode != 0 or not result.stdout.startswith("{"):
        print(result.stdout, end="", flush=True)
        sys.exit(result.returncode)
    return Parsed(**json.loads(result.stdout))
