"""The registry through which the parts of a data service find each other.

Dispatchers register their addresses, workers their presence, and a training job its end. Rank 0 of
the workers' job runs the registry; all other processes are clients. A connection carries one
request and one answer, as JSON, authenticated and encrypted like all connections of Ronde
(`horovod._native.Tunnel`), with the service's key. No wait is longer than its timeout.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from horovod import _native
from horovod.common import environment

__all__ = ["ComputeClient", "ComputeService", "make_key"]

Addresses = dict[str, list[tuple[str, int]]]

_KEY_BYTES = 32
_PATIENCE_SECONDS = 10.0
# A wait is repeated after this time, so that neither side keeps a dead connection.
_LONGEST_WAIT_SECONDS = 5.0
_ADDRESS_OF_INTERFACE = 0x8915


def make_key() -> bytes:
    """Return a new key for a registry and its clients.

    Returns:
        32 random bytes.
    """
    return secrets.token_bytes(_KEY_BYTES)


class ComputeService:
    """Registry of a data service; listens until `shutdown`.

    Rank 0 of the workers' job runs it.

    Args:
        dispatchers: Number of dispatchers.
        workers_per_dispatcher: Number of workers of each.
        key: What `make_key` returned.
        one_host: Whether to listen on the loopback address only (default: False).
    """

    def __init__(
        self, dispatchers: int, workers_per_dispatcher: int, key: bytes, one_host: bool = False
    ) -> None:
        self._dispatchers: dict[int, str] = {}
        self._workers: dict[int, set[int]] = {number: set() for number in range(dispatchers)}
        self._workers_needed = workers_per_dispatcher
        self._servers: dict[str, list[tuple[str, int]]] = {}
        self._ended: set[int] = set()
        self._is_over = False
        self._changed = threading.Condition()
        self._one_host = one_host
        self._tunnel = _native.Tunnel(key, "127.0.0.1" if one_host else "0.0.0.0", self._reply)

    def addresses(self) -> Addresses:
        """Return where the registry listens.

        Returns:
            Addresses and ports, by network interface.
        """
        port = self._tunnel.port
        return {
            name: [(address, port)]
            for name, address in interfaces()
            if is_loopback(address) or not self._one_host
        }

    def shutdown(self) -> None:
        """Stop the registry, and end every wait for it."""
        with self._changed:
            self._is_over = True
            self._ended.update(self._workers)
            self._changed.notify_all()
        self._tunnel.close()

    def _reply(self, question: bytes) -> bytes:
        return json.dumps(self._answer(json.loads(question))).encode()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        number, seconds = int(request["dispatcher"]), float(request.get("seconds", 0))
        with self._changed:
            if number not in self._workers:
                return {"error": f"there is no dispatcher {number}"}
            seconds = min(seconds, _LONGEST_WAIT_SECONDS)
            answer: dict[str, Any] = _DEEDS[request["do"]](self, number, request, seconds)
            return answer

    def _register_server(self, _: int, request: dict[str, Any], __: float) -> Any:
        self._servers[str(request["name"])] = request["places"]
        return {}

    def _all_servers(self, _: int, __: dict[str, Any], ___: float) -> Any:
        return {"value": self._servers}

    def _register_dispatcher(self, number: int, request: dict[str, Any], _: float) -> Any:
        known = self._dispatchers.setdefault(number, str(request["address"]))
        self._changed.notify_all()
        if known != request["address"]:
            return {"error": f"dispatcher {number} is already at `{known}`"}
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
    "register_server": ComputeService._register_server,
    "servers": ComputeService._all_servers,
    "register_dispatcher": ComputeService._register_dispatcher,
    "register_worker": ComputeService._register_worker,
    "dispatcher": ComputeService._dispatcher,
    "all_workers": ComputeService._all_workers,
    "end": ComputeService._end,
    "end_all": ComputeService._end_all,
    "has_ended": ComputeService._has_ended,
}


class ComputeClient:
    """Client of the registry; uses the first of its addresses that answers.

    Args:
        compute_addresses: Addresses and ports of the registry, by network interface.
        key: Key of the service.
        verbose: 2 or more to print what is registered (default: 1).

    Raises:
        ConnectionError: If the registry does not answer.
    """

    def __init__(self, compute_addresses: Addresses, key: bytes, verbose: int = 1) -> None:
        self._key = key
        self._verbose = verbose
        self._places = [
            (address, int(port)) for each in compute_addresses.values() for address, port in each
        ]
        # A registry on another host cannot be reached at an address that every host has.
        self._places.sort(key=lambda place: is_loopback(place[0]))
        self._own = "localhost"
        self._ask({"do": "has_ended", "dispatcher": 0})

    def own_address(self) -> str:
        """Return the address of this host from which it reaches the registry.

        Returns:
            The address.
        """
        return self._own

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        """Register a dispatcher.

        Args:
            dispatcher_id: Number of the dispatcher.
            dispatcher_address: Its address, for `tf.data.experimental.service.distribute`.

        Raises:
            ValueError: If it is registered with another address.
            ConnectionError: If the registry does not answer.
        """
        self._tell(f"dispatcher {dispatcher_id} is at {dispatcher_address}")
        self._ask(
            {
                "do": "register_dispatcher",
                "dispatcher": dispatcher_id,
                "address": dispatcher_address,
            }
        )

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        """Register a worker of a dispatcher.

        Args:
            dispatcher_id: Number of the dispatcher.
            worker_id: Number of the worker.

        Raises:
            ConnectionError: If the registry does not answer.
        """
        self._tell(f"worker {worker_id} of dispatcher {dispatcher_id} is there")
        self._ask({"do": "register_worker", "dispatcher": dispatcher_id, "worker": worker_id})

    def register_server(self, name: str, places: Sequence[tuple[str, int]]) -> None:
        """Register the tunnel that leads to a server.

        Args:
            name: Name of the server.
            places: Addresses and ports of the tunnel.

        Raises:
            ConnectionError: If the registry does not answer.
        """
        self._tell(f"{name} is behind {places}")
        self._ask({"do": "register_server", "dispatcher": 0, "name": name, "places": list(places)})

    def servers(self) -> dict[str, list[tuple[str, int]]]:
        """Return the servers that are registered.

        Returns:
            Addresses and ports of their tunnels, by name.

        Raises:
            ConnectionError: If the registry does not answer.
        """
        found = self._ask({"do": "servers", "dispatcher": 0})
        return {name: [(address, port) for address, port in at] for name, at in found.items()}

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """Wait until a dispatcher is registered.

        Args:
            dispatcher_id: Number of the dispatcher.
            timeout: Seconds to wait.

        Returns:
            Its address.

        Raises:
            TimeoutError: If that takes longer than `timeout`.
            ConnectionError: If the registry does not answer.
        """
        return str(self._wait("dispatcher", dispatcher_id, timeout, "to register"))

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Wait until all workers of a dispatcher are registered.

        Args:
            dispatcher_id: Number of the dispatcher.
            timeout: Seconds to wait.

        Raises:
            TimeoutError: If that takes longer than `timeout`.
            ConnectionError: If the registry does not answer.
        """
        self._wait("all_workers", dispatcher_id, timeout, "to have all its workers")

    def shutdown(self, dispatcher_id: int | None = None) -> None:
        """End the workers' job, or the workers of one dispatcher.

        Args:
            dispatcher_id: Number of the dispatcher (default: all).

        Raises:
            ConnectionError: If the registry does not answer.
        """
        # One request for all: the registry ends with the last of its workers.
        if dispatcher_id is None:
            self._ask({"do": "end_all", "dispatcher": 0})
        else:
            self._ask({"do": "end", "dispatcher": dispatcher_id})

    def wait_for_shutdown(self, dispatcher_id: int = 0) -> None:
        """Wait until the workers of a dispatcher are no longer needed.

        Args:
            dispatcher_id: Number of the dispatcher (default: 0).
        """
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
            seconds = min(left, _LONGEST_WAIT_SECONDS)
            value = self._ask({"do": deed, "dispatcher": number, "seconds": seconds})
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
                problems.append(str(error))
                continue
            # The next request tries this address first.
            self._places.sort(key=lambda known: known != place)
            if "error" in answer:
                raise ValueError(answer["error"])
            return answer.get("value")
        raise ConnectionError(
            f"the data service's registry does not answer ({', '.join(problems)}); the job of "
            "`python -m horovod.tensorflow.data.compute_worker` must be running, and the "
            "configuration file must belong to this run: each run has its own key"
        )

    def _ask_at(self, place: tuple[str, int], request: dict[str, Any]) -> dict[str, Any]:
        seconds = _PATIENCE_SECONDS + request.get("seconds", 0)
        question = json.dumps(request).encode()
        answer, self._own = _native.tunnel_ask(self._key, *place, question, seconds)
        found: dict[str, Any] = json.loads(answer)
        return found

    def _tell(self, text: str) -> None:
        if self._verbose >= 2:
            print(f"data service: {text}", flush=True)


def is_loopback(address: str) -> bool:
    """Whether this is a loopback address."""
    return address.startswith("127.")


def interfaces() -> Sequence[tuple[str, str]]:
    """The network interfaces of this host that have an address, and addresses it advertises."""
    found = [(f"advertised {address}", address) for address in environment.advertised()]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            asked = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(any_socket, _ADDRESS_OF_INTERFACE, asked)
            except OSError:
                continue
            found.append((name, socket.inet_ntoa(answer[20:24])))
    return found
