"""Messages between the processes of a measurement: one JSON object per line over a unix socket.

A process that waits for its turn is blocked in `receive`, and takes no CPU time from the others.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

Message = dict[str, Any]


class Closed(Exception):
    """The peer closed the connection."""


class Channel:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("r", encoding="utf-8")

    @classmethod
    def to(cls, path: str) -> Channel:
        """Connects to the process that listens at this path."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(path)
        return cls(connection)

    def close(self) -> None:
        """Closes the connection."""
        self._lines.close()
        self._connection.close()

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message; raises `Closed` if the peer is gone."""
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise Closed(str(error)) from error

    def receive(self) -> Message:
        """Waits for the next message; raises `Closed` if the peer is gone."""
        try:
            line = self._lines.readline()
        except OSError as error:
            raise Closed(str(error)) from error
        if not line:
            raise Closed("the connection ended")
        message: Message = json.loads(line)
        return message


def listen(path: str) -> socket.socket:
    """Listens at this path; any process that can enter its folder can connect."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(path)
    server.listen(1024)
    return server
