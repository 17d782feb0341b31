"""Finds the native commands `horovodrun` and `ronde`."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig

from horovod import _native


def horovodrun() -> str:
    """The launcher that was installed with this package, or else the first on the PATH."""
    return _command("horovodrun")


def ronde() -> str:
    """The command `ronde`, found the same way."""
    return _command("ronde")


def _command(name: str) -> str:
    folders = [os.path.dirname(sys.executable), sysconfig.get_path("scripts")]
    # Where `pip install --user` puts commands.
    folders.append(sysconfig.get_path("scripts", f"{os.name}_user"))
    folders.append(os.environ.get("PATH", os.defpath))
    found = shutil.which(name, path=os.pathsep.join(filter(None, folders)))
    if found is None:
        raise RuntimeError(
            f"the command `{name}` is neither next to this Python nor on the PATH; install "
            f"Ronde again: {_native.REINSTALL}"
        )
    return found
