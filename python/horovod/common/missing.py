"""The one table of Horovod's names that this release lacks, and the error that says so.

`README.md` shows the same list to users; a name leaves the table when it comes to life.
"""

from __future__ import annotations

MISSING: dict[str, frozenset[str]] = {}


def not_in_this_release(module: str, name: str) -> AttributeError:
    """The error for an attribute that `module` does not have."""
    if name in MISSING.get(module, frozenset()):
        return AttributeError(
            f"{module}.{name} is not in this release yet; see the table in README.md"
        )
    return AttributeError(f"module {module!r} has no attribute {name!r}")
