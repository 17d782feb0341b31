"""Checks what `help()` shows for a group of public modules, and runs their docstring examples.

`python shown.py torch` checks the modules that need only torch, and prints what is wrong.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import docstrings

import horovod
from horovod.common.basics import _basics

# The group of each framework; modules of one group can be imported together.
GROUP_OF = {
    "jax": "jax",
    "keras": "tensorflow",
    "lightning": "torch",
    "mxnet": "mxnet",
    "ray": "ray",
    "tensorflow": "tensorflow",
    "torch": "torch",
}
LONGEST_DEFAULT = 40


def default_faults(value: Callable[..., Any]) -> list[str]:
    """Defaults that a reader of `help()` cannot read."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:
        return []
    given = [each for each in parameters if each.default is not each.empty]
    # A built-in class is shown by its name alone.
    plain = re.compile(r"<class '(\w+)'>")
    shown = {
        f"{each.name}={each.default!r}": plain.sub(r"\1", repr(each.default)) for each in given
    }
    return [text for text, each in shown.items() if "<" in each or len(each) > LONGEST_DEFAULT]


def example_fault(code: str) -> str | None:
    """The error that an example raises in a world of one rank, if any."""
    try:
        exec(compile(code, "<example>", "exec"), {"__name__": "example"})
    except Exception:
        return f"{code}\n{traceback.format_exc()}"
    finally:
        _basics.shutdown()
    return None


def group_of_module(module: str) -> str:
    """The group that a module of the package belongs to."""
    return GROUP_OF.get(([*module.split("."), ""])[1], "plain")


def group_of_example(code: str) -> str:
    """The group of the modules that an example imports."""
    imported = re.findall(r"^(?:from|import) (?:horovod\.)?(\w+)", code, re.MULTILINE)
    groups = {GROUP_OF[each] for each in imported if each in GROUP_OF}
    return min(groups, default="plain")


def help_faults(package: docstrings.Package, module: str) -> Iterator[str]:
    """Differences between what `help()` shows and the source."""
    imported = importlib.import_module(module)
    for name in package.exports(module):
        found = package.resolve(module, name)
        assert found is not None
        value = getattr(imported, name)
        if not isinstance(found.node, (ast.FunctionDef, ast.ClassDef)):
            continue
        # A class written only for type checkers is a different one at run time.
        if found.node.name == value.__name__:
            written = ast.get_docstring(found.node)
            if inspect.getdoc(value) != written:
                yield f"{module}.{name}: help() does not show its docstring"
        yield from (f"{module}.{name}: {each}" for each in default_faults(value))


def faults(group: str) -> Iterator[str]:
    """All faults of a group."""
    package = docstrings.Package(Path(horovod.__file__).parent)
    # Torch may be installed without Lightning.
    gone = "lightning" if find_spec("lightning") is None else "nothing"
    modules = [each for each in package.public_modules() if group_of_module(each) == group]
    modules = [each for each in modules if gone not in each]
    assert modules, f"no modules in {group}"
    for module in modules:
        yield from help_faults(package, module)
    for module, name, node in package.functions():
        for code in docstrings.examples_of(ast.get_docstring(node) or ""):
            if group_of_example(code) == group and f"import {gone}" not in code:
                fault = example_fault(code)
                yield from () if fault is None else (f"{module}.{name}: {fault}",)


if __name__ == "__main__":
    found = list(faults(sys.argv[1]))
    print("\n".join(found))
    sys.exit(bool(found))
