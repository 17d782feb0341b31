"""Distributed training with Horovod's API: `import horovod.torch as hvd`.

This module imports no framework and no native code, so importing it is cheap and always works; the
framework packages do the rest.
"""

from __future__ import annotations

from horovod import _absent

# Type checkers recognize this name; importing `typing` would take a while.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from horovod.common.rendezvous import open_rendezvous, use_rendezvous
    from horovod.runner import run

__all__ = ["__version__", "open_rendezvous", "run", "use_rendezvous"]

__version__ = "0.28.1+ronde.0.1.0"
"""Version of Horovod whose API this is; after the `+`, the version of Ronde itself."""

_absent.install()


def __getattr__(name: str) -> object:
    if name == "run":
        # Imported only in programs that start jobs from Python.
        from horovod.runner import run

        return run
    if name in ("open_rendezvous", "use_rendezvous"):
        from horovod.common import rendezvous

        return getattr(rendezvous, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
