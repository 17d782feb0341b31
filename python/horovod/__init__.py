"""Distributed training with Horovod's API: `import horovod.torch as hvd`.

This module imports no framework and no native code, so that it is cheap and always works; the
framework folders do the rest.
"""

from __future__ import annotations

from horovod import _absent

# As type checkers know it, without the import of `typing`, which takes a while.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from horovod.runner import run

__all__ = ["__version__", "run"]

__version__ = "0.28.1+ronde.0.1.0"
"""Version of Horovod whose API this is, and behind the `+` that of Ronde itself."""

_absent.install()


def __getattr__(name: str) -> object:
    if name == "run":
        # Only whoever starts jobs from Python pays for it.
        from horovod.runner import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
