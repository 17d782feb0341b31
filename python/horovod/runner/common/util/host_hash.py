"""A name for this host that is the same in all processes that share its memory and network."""

from __future__ import annotations

import hashlib
import os
import socket
from contextlib import suppress

_NAMESPACES = ("ipc", "net", "uts")


def host_hash(salt: str | None = None) -> str:
    """The host's name and a digest of its name, its namespaces and `salt`."""
    name = socket.gethostname()
    parts = [name, *_namespaces(), salt or ""]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return f"{name.split('.')[0]}-{digest[:32]}"


def _namespaces() -> list[str]:
    # Two containers on one machine may have the same name and share nothing.
    found = []
    for namespace in _NAMESPACES:
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/ns/{namespace}"))
    return found
