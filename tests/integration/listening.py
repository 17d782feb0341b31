"""Finds the sockets on which processes listen, using `/proc`."""

import os
import re
import socket
import struct
from contextlib import suppress
from pathlib import Path

LISTEN = "0A"
# The flag of a unix socket that accepts connections.
ACCEPTS = 0x10000


def of(pid):
    """The sockets on which a process listens: `("tcp", address, port)` and `("unix", name)`."""
    inodes = set()
    # The process and its descriptors may vanish in the meantime.
    with suppress(FileNotFoundError, ProcessLookupError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                inodes.update(re.findall(r"^socket:\[(\d+)\]$", os.readlink(entry)))
    return {where for inode, where in _all_listeners(pid) if inode in inodes}


def of_all(pids):
    """A sorted list of the sockets on which these processes listen."""
    return sorted(where for pid in pids for where in of(pid))


def _all_listeners(pid):
    with suppress(FileNotFoundError, ProcessLookupError):
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTEN:
                    address, port = fields[1].split(":")
                    yield fields[9], ("tcp", _address(address), int(port, 16))
        for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[3], 16) & ACCEPTS:
                yield fields[6], ("unix", fields[7] if len(fields) > 7 else "")


def _address(digits):
    """Decodes an address, which the kernel prints as words in the machine's byte order."""
    words = [int(digits[place : place + 8], 16) for place in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed)
