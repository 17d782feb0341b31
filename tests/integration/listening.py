"""What processes listen at, as the kernel tells it."""

import os
import re
import socket
import struct
from contextlib import suppress
from pathlib import Path

LISTEN = "0A"
# Of unix sockets: the flag of one that accepts connections.
ACCEPTS = 0x10000


def of(pid):
    """The sockets at which a process listens: `("tcp", address, port)` and `("unix", name)`."""
    inodes = set()
    # A process may end meanwhile, and its descriptors with it.
    with suppress(FileNotFoundError, ProcessLookupError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                inodes.update(re.findall(r"^socket:\[(\d+)\]$", os.readlink(entry)))
    return {where for inode, where in _everybody(pid) if inode in inodes}


def of_all(pids):
    """What some processes listen at, in a list."""
    return sorted(where for pid in pids for where in of(pid))


def _everybody(pid):
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
    """The kernel writes addresses as words in the machine's order of bytes."""
    words = [int(digits[place : place + 8], 16) for place in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed)
