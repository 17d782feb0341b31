"""Where the parts of a data service find each other: dispatchers say where they are, workers that
they are there, and a training job that it has ended.

Rank 0 of the workers' job has the registry; everybody else is a client of it. A connection carries
one request and one answer, as JSON, each with a code that only who holds the key can make. The
registry's first word on a connection is a number that is used once, so nothing can be said again.
No wait is longer than its timeout.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import secrets
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Addresses = dict[str, list[tuple[str, int]]]

_CODE_BYTES = hashlib.sha256().digest_size
_LONGEST_MESSAGE = 1 << 16
_PATIENCE_SECONDS = 10.0
# A wait asks again after this time, so that neither side keeps a connection that has died.
_LONGEST_WAIT_SECONDS = 5.0
_ADDRESS_OF_INTERFACE = 0x8915


def make_key() -> bytes:
    """A key for a registry and its clients."""
    return secrets.token_bytes(32)


class ComputeService:
    """The registry; it listens until `shutdown`."""

    def __init__(self, dispatchers: int, workers_per_dispatcher: int, key: bytes) -> None:
        self._dispatchers: dict[int, str] = {}
        self._workers: dict[int, set[int]] = {number: set() for number in range(dispatchers)}
        self._workers_needed = workers_per_dispatcher
        self._ended: set[int] = set()
        self._is_over = False
        self._changed = threading.Condition()
        self._server = _Server(key, self._answer)
        # It looks so often whether it is to end.
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=[0.05], name="ronde-registry", daemon=True
        )
        self._thread.start()

    def addresses(self) -> Addresses:
        """Where it listens, by network interface."""
        port = self._server.server_address[1]
        return {name: [(address, port)] for name, address in _interfaces()}

    def shutdown(self) -> None:
        """Ends it, and every wait for it; who has asked something still gets the answer."""
        with self._changed:
            self._is_over = True
            self._ended.update(self._workers)
            self._changed.notify_all()
        self._server.shutdown()
        self._server.settle()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        number, seconds = int(request["dispatcher"]), float(request.get("seconds", 0))
        with self._changed:
            if number not in self._workers:
                return {"error": f"there is no dispatcher {number}"}
            seconds = min(seconds, _LONGEST_WAIT_SECONDS)
            answer: dict[str, Any] = _DEEDS[request["do"]](self, number, request, seconds)
            return answer

    def _register_dispatcher(self, number: int, request: dict[str, Any], _: float) -> Any:
        known = self._dispatchers.setdefault(number, str(request["address"]))
        self._changed.notify_all()
        if known != request["address"]:
            return {"error": f"dispatcher {number} is at `{known}` already"}
        return {}

    def _register_worker(self, number: int, request: dict[str, Any], _: float) -> Any:
        self._workers[number].add(int(request["worker"]))
        self._changed.notify_all()
        return {}

    def _dispatcher(self, number: int, _: dict[str, Any], seconds: float) -> Any:
        self._changed.wait_for(lambda: self._is_over or number in self._dispatchers, seconds)
        return {"value": self._dispatchers.get(number)}

    def _all_workers(self, number: int, _: dict[str, Any], seconds: float) -> Any:
        def are_there() -> bool:
            return len(self._workers[number]) >= self._workers_needed

        self._changed.wait_for(lambda: self._is_over or are_there(), seconds)
        return {"value": are_there() or None}

    def _end(self, number: int, _: dict[str, Any], __: float) -> Any:
        self._ended.add(number)
        self._changed.notify_all()
        return {}

    def _end_all(self, _: int, __: dict[str, Any], ___: float) -> Any:
        self._ended.update(self._workers)
        self._changed.notify_all()
        return {}

    def _has_ended(self, number: int, _: dict[str, Any], seconds: float) -> Any:
        self._changed.wait_for(lambda: number in self._ended, seconds)
        return {"value": (number in self._ended) or None}


_DEEDS: dict[str, Callable[..., Any]] = {
    "register_dispatcher": ComputeService._register_dispatcher,
    "register_worker": ComputeService._register_worker,
    "dispatcher": ComputeService._dispatcher,
    "all_workers": ComputeService._all_workers,
    "end": ComputeService._end,
    "end_all": ComputeService._end_all,
    "has_ended": ComputeService._has_ended,
}


class ComputeClient:
    """Talks to the registry at the first of its addresses that answers."""

    def __init__(self, compute_addresses: Addresses, key: bytes, verbose: int = 1) -> None:
        self._key = key
        self._verbose = verbose
        self._places = [
            (address, int(port)) for each in compute_addresses.values() for address, port in each
        ]
        # Who is reached on another host is not reached at an address that every host has.
        self._places.sort(key=lambda place: place[0].startswith("127."))
        self._own = "localhost"
        self._ask({"do": "has_ended", "dispatcher": 0})

    def own_address(self) -> str:
        """The address of this host by which it reaches the registry."""
        return self._own

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        """Says where a dispatcher is."""
        self._tell(f"dispatcher {dispatcher_id} is at {dispatcher_address}")
        self._ask(
            {
                "do": "register_dispatcher",
                "dispatcher": dispatcher_id,
                "address": dispatcher_address,
            }
        )

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        """Says that a worker of a dispatcher is there."""
        self._tell(f"worker {worker_id} of dispatcher {dispatcher_id} is there")
        self._ask({"do": "register_worker", "dispatcher": dispatcher_id, "worker": worker_id})

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """Where a dispatcher is, as soon as it has said so."""
        return str(self._wait("dispatcher", dispatcher_id, timeout, "to register"))

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Returns when all workers of a dispatcher are there."""
        self._wait("all_workers", dispatcher_id, timeout, "to have all its workers")

    def shutdown(self, dispatcher_id: int | None = None) -> None:
        """Says that the workers, of one dispatcher or of all, are no longer needed."""
        # One question for all: the registry goes when the last of its workers does.
        if dispatcher_id is None:
            self._ask({"do": "end_all", "dispatcher": 0})
        else:
            self._ask({"do": "end", "dispatcher": dispatcher_id})

    def wait_for_shutdown(self, dispatcher_id: int = 0) -> None:
        """Returns when somebody has said so for this dispatcher, or the registry is gone."""
        request = {"do": "has_ended", "dispatcher": dispatcher_id, "seconds": _LONGEST_WAIT_SECONDS}
        try:
            while self._ask(request) is None:
                pass
        except ConnectionError:
            self._tell("the registry is gone")

    def _wait(self, deed: str, number: int, timeout: float, what: str) -> Any:
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            value = self._ask({"do": deed, "dispatcher": number, "seconds": left})
            if value is not None:
                return value
            if left == 0.0:
                raise TimeoutError(
                    f"Timed out waiting for dispatcher {number} {what}. Timeout after {timeout:g} "
                    "seconds. Is the other job, of workers or of training, running with this "
                    "configuration?"
                )

    def _ask(self, request: dict[str, Any]) -> Any:
        problems = []
        for place in list(self._places):
            try:
                answer = self._ask_at(place, request)
            except OSError as error:
                problems.append(f"{place[0]}:{place[1]} ({error})")
                continue
            # The next question goes there first.
            self._places.sort(key=lambda known: known != place)
            if "error" in answer:
                raise ValueError(answer["error"])
            return answer.get("value")
        raise ConnectionError(
            f"the data service's registry does not answer at {', '.join(problems)}; the job of "
            "`python -m horovod.tensorflow.data.compute_worker` must be running, and its "
            "configuration file be of this run"
        )

    def _ask_at(self, place: tuple[str, int], request: dict[str, Any]) -> dict[str, Any]:
        with socket.create_connection(place, _PATIENCE_SECONDS) as connection:
            connection.settimeout(_PATIENCE_SECONDS + _LONGEST_WAIT_SECONDS)
            once = _read(connection, _CODE_BYTES)
            _send(connection, self._key, b"request" + once, request)
            answer = _receive(connection, self._key, b"answer" + once)
            self._own = connection.getsockname()[0]
            return answer

    def _tell(self, text: str) -> None:
        if self._verbose >= 2:
            print(f"data service: {text}", flush=True)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, key: bytes, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        super().__init__(("", 0), _Connection)
        self.key = key
        self.answer = answer
        self._unanswered = 0
        self._answered = threading.Condition()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Around every answer, from before it is found until it has been sent."""
        with self._answered:
            self._unanswered += 1
        try:
            yield
        finally:
            with self._answered:
                self._unanswered -= 1
                self._answered.notify_all()

    def settle(self) -> None:
        """Returns when all who have asked have their answer."""
        with self._answered:
            self._answered.wait_for(lambda: self._unanswered == 0, _PATIENCE_SECONDS)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever does not hold the key, or goes away, is not worth a word."""


class _Connection(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        self.request.settimeout(_PATIENCE_SECONDS)
        once = secrets.token_bytes(_CODE_BYTES)
        self.request.sendall(once)
        request = _receive(self.request, self.server.key, b"request" + once)
        with self.server.answering():
            _send(self.request, self.server.key, b"answer" + once, self.server.answer(request))


def _send(connection: Any, key: bytes, context: bytes, message: dict[str, Any]) -> None:
    content = json.dumps(message).encode()
    code = hmac.digest(key, context + content, "sha256")
    connection.sendall(code + struct.pack("<I", len(content)) + content)


def _receive(connection: Any, key: bytes, context: bytes) -> dict[str, Any]:
    code = _read(connection, _CODE_BYTES)
    (length,) = struct.unpack("<I", _read(connection, 4))
    if length > _LONGEST_MESSAGE:
        raise ConnectionError("what is there speaks another language")
    content = _read(connection, length)
    if not hmac.compare_digest(code, hmac.digest(key, context + content, "sha256")):
        raise ConnectionError("what is there does not hold the key")
    message: dict[str, Any] = json.loads(content)
    return message


def _read(connection: Any, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(length - len(parts))
        if not part:
            raise ConnectionError("the connection was closed; another key may be held there")
        parts += part
    return bytes(parts)


def _interfaces() -> Sequence[tuple[str, str]]:
    """The network interfaces of this host that have an address."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            asked = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(any_socket, _ADDRESS_OF_INTERFACE, asked)
            except OSError:
                continue
            found.append((name, socket.inet_ntoa(answer[20:24])))
    return found
