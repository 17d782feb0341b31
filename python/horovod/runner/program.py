"""Finds the native command `horovodrun`."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig

from horovod import _native


def horovodrun() -> str:
    """The command that was installed with this package, or else the first on the PATH."""
    folders = [os.path.dirname(sys.executable), sysconfig.get_path("scripts")]
    # Where `pip install --user` puts commands.
    folders.append(sysconfig.get_path("scripts", f"{os.name}_user"))
    folders.append(os.environ.get("PATH", os.defpath))
    found = shutil.which("horovodrun", path=os.pathsep.join(filter(None, folders)))
    if found is None:
        raise RuntimeError(
            "the command `horovodrun` is neither next to this Python nor on the PATH; install "
            f"Ronde again: {_native.REINSTALL}"
        )
    return found
