"""Messages between the processes of a measurement: one JSON object per line over a unix socket.

A process that waits for its turn is blocked in `receive`, and takes no time from the others.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

Message = dict[str, Any]


class Closed(Exception):
    """The other side has gone."""


class Channel:
    """One side of a conversation."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("r", encoding="utf-8")

    @classmethod
    def to(cls, path: str) -> Channel:
        """Connects to who listens at this path."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(path)
        return cls(connection)

    def close(self) -> None:
        """Ends the conversation."""
        self._lines.close()
        self._connection.close()

    def send(self, message: Mapping[str, Any]) -> None:
        """Says something; raises `Closed` if nobody is there to hear it."""
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise Closed(str(error)) from error

    def receive(self) -> Message:
        """Waits for the next message; raises `Closed` if there will be none."""
        try:
            line = self._lines.readline()
        except OSError as error:
            raise Closed(str(error)) from error
        if not line:
            raise Closed("the connection ended")
        message: Message = json.loads(line)
        return message


def listen(path: str) -> socket.socket:
    """Opens the door at this path; whoever may enter its folder may come."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.bind(path)
    door.listen(1024)
    return door
