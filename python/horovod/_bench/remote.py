"""Scheduling through collectives, for ranks on several hosts, which share no folder.

While another system is measured, ranks sleep in the engine until the next message.
"""

from __future__ import annotations

import json

from horovod import _native
from horovod._bench.channel import Message
from horovod._bench.scheduler import unrefused
from horovod._bench.worker import Worker


class RemoteRanks:
    """All ranks of this world; rank 0 sends requests, all ranks answer."""

    def __init__(self, worker: Worker) -> None:
        try:
            import numpy
        except ImportError as error:
            raise RuntimeError("measuring on several hosts needs NumPy on each of them") from error
        from horovod import raw

        self._numpy, self._raw = numpy, raw
        self._own = worker

    def ask(self, message: Message) -> list[Message]:
        """Sends a request; returns all answers in rank order, or raises `Refused` for an error."""
        self._tell(message)
        return unrefused(self._answers(self._own.on(message)))

    def dismiss(self) -> None:
        """Tells the processes that there is no more work."""
        self._tell({"do": "end"})

    def serve(self) -> None:
        """Handles requests until there are no more."""
        while (message := self._tell(None))["do"] != "end":
            self._answers(self._own.on(message))

    def _tell(self, message: Message | None) -> Message:
        """Sends rank 0's message to every rank."""
        text = json.dumps(message).encode()
        length = self._raw.broadcast(self._numpy.array([len(text)]), 0, name="turn.length")
        space = self._numpy.zeros(int(length[0]), self._numpy.uint8)
        if message is not None:
            space[:] = self._numpy.frombuffer(text, self._numpy.uint8)
        received: Message = json.loads(self._raw.broadcast(space, 0, name="turn").tobytes())
        return received

    def _answers(self, own: Message) -> list[Message]:
        line = json.dumps(own).encode() + b"\n"
        lines = self._raw.allgather(self._numpy.frombuffer(line, self._numpy.uint8), name="answers")
        answers: list[Message] = [json.loads(each) for each in lines.tobytes().splitlines()]
        assert len(answers) == _native.size()
        return answers
