"""Distributed training with Horovod's API: `import horovod.torch as hvd`.

This module imports no framework and no native code, so that it is cheap and always works; the
framework folders do the rest.
"""

from __future__ import annotations

from horovod import _absent

__version__ = "0.28.1+ronde.0.1.0"

_absent.install()


def __getattr__(name: str) -> object:
    if name == "run":
        # Only whoever starts jobs from Python pays for it.
        from horovod.runner import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
