"""Lets the processes of a data service, and no others, reach its servers.

TensorFlow's dispatchers and workers authenticate nobody and listen on all addresses. So each of
them accepts only the tunnel (`horovod._native.Tunnel`) of its own process, and its public address
is the path of a unix socket, the same on all hosts. On its own host that socket belongs to its
tunnel. On another host it belongs to one of the service's processes there, which forwards callers
to the server's tunnel over an encrypted connection; when that process ends, another takes its
place.

The sockets are in a folder that only their owner can enter; its name is derived from the service's
key. The process that holds the lock in it owns the sockets of servers on other hosts.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hmac
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from horovod import _native
from horovod.tensorflow.data.registry import Addresses, ComputeClient, interfaces, is_loopback

# Not in TMPDIR: the path must be the same on all hosts.
_PARENT = "/tmp"
_PREFIX = "ronde-data-"
_LOCK = "lock"
# How often it tries to take the lock and, as long as nothing changes, checks for new servers.
_LOOK_SECONDS = 0.2
_LONGEST_LOOK_SECONDS = 1.0
_LONGEST_LINGER_SECONDS = 30.0

_tunnels: dict[bytes, ServiceTunnel] = {}
_making = threading.Lock()


def tunnel_of(addresses: Addresses, key: bytes, timeout: float) -> ServiceTunnel:
    """The tunnel of this process for a service; there is one per service."""
    with _making:
        if key not in _tunnels:
            _tunnels[key] = ServiceTunnel(addresses, key, timeout)
        return _tunnels[key]


class ServiceTunnel:
    """Serves this process's servers, and forwards to the servers of other hosts."""

    def __init__(self, addresses: Addresses, key: bytes, timeout: float) -> None:
        self._key, self._timeout = key, timeout
        self._folder = Folder(key)
        self._client = ComputeClient(addresses, key)
        is_here = all(is_loopback(place[0]) for each in addresses.values() for place in each)
        self._listen = "127.0.0.1" if is_here else "0.0.0.0"
        self._end = threading.Event()
        # From here on the folder is in use, so that no other process removes it as stale.
        self._folder.lock()
        self._thread = threading.Thread(target=self._keep, name="ronde-tunnel", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def address(self, name: str) -> str:
        """The gRPC address of a server, valid in any process of the service."""
        return f"unix:{self._folder.socket(name)}"

    @contextlib.contextmanager
    def served(self, name: str, start: Callable[[int], Any]) -> Iterator[Any]:
        """Runs a server that `start` creates on a port; inside the block, the service can reach
        it."""
        tunnel = _native.Tunnel(self._key, self._listen)
        server = None
        try:
            port = _reserved(tunnel)
            server = start(port)
            tunnel.serve(name, port, self._folder.socket(name))
            self._client.register_server(name, self._places(tunnel.port))
            yield server
        finally:
            tunnel.close()
            if server is not None:
                server._stop()

    def await_way(self, names: Iterable[str]) -> None:
        """Waits until these registered servers can be reached from this host."""
        deadline = time.monotonic() + self._timeout
        for name in names:
            while not self._folder.answers(name):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"Timed out waiting for a path to `{name}` of the data service. Timeout "
                        f"after {self._timeout:g} seconds. Does the process that has the lock in "
                        f"`{self._folder.path}` still run?"
                    )
                self._end.wait(0.02)

    def close(self) -> None:
        """Closes the tunnel; another process on this host takes over its sockets."""
        atexit.unregister(self.close)
        self._end.set()
        self._thread.join()
        _tunnels.pop(self._key, None)

    def _places(self, port: int) -> list[tuple[str, int]]:
        """The addresses of this process, the most likely one first."""
        own = self._client.own_address()
        others = [address for _, address in interfaces() if address != own]
        others.sort(key=is_loopback)
        return [(address, port) for address in [own, *others]]

    def _keep(self) -> None:
        """Serves the sockets of servers on other hosts, once it has the lock."""
        tunnel = _native.Tunnel(self._key)
        known: set[str] = set()
        pause, heard = 0.0, time.monotonic()
        try:
            # Existing paths are kept for a while: the registry may only be unreachable.
            while not self._end.wait(pause) and time.monotonic() < heard + self._timeout:
                pause = min(2 * pause + 0.01, _LONGEST_LOOK_SECONDS)
                if not self._folder.lock():
                    pause, heard = _LOOK_SECONDS, time.monotonic()
                    continue
                try:
                    servers = self._client.servers()
                except ConnectionError:
                    continue
                heard = time.monotonic()
                for name in servers.keys() - known:
                    pause = 0.0
                    if not self._folder.answers(name):
                        tunnel.reach(name, self._folder.socket(name), servers[name])
                known.update(servers)
        finally:
            tunnel.retire()
            self._folder.leave()
            # A broken connection may cost another rank of this host elements in flight.
            tunnel.linger(min(self._timeout, _LONGEST_LINGER_SECONDS))
            tunnel.close()


class Folder:
    """The folder of a service's sockets on this host."""

    def __init__(self, key: bytes) -> None:
        self.path = os.path.join(
            _PARENT, _PREFIX + hmac.digest(key, b"folder", "sha256").hex()[:32]
        )
        self._held: int | None = None
        _sweep()

    def socket(self, name: str) -> str:
        """The path of a server's socket."""
        return os.path.join(self.path, name)

    def answers(self, name: str) -> bool:
        """Whether a process listens there."""
        with socket.socket(socket.AF_UNIX) as caller:
            try:
                caller.connect(self.socket(name))
            except OSError:
                return False
            return True

    def lock(self) -> bool:
        """Tries to take the lock; creates the folder if there is none."""
        while self._held is None:
            self._make()
            path = os.path.join(self.path, _LOCK)
            try:
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except FileNotFoundError:
                continue
            if not _locked(handle):
                os.close(handle)
                return False
            # The last process to leave has removed it, perhaps after it was opened here.
            if _is(handle, path):
                self._held = handle
            else:
                os.close(handle)
        return True

    def leave(self) -> None:
        """Releases the lock; the last process removes the folder."""
        if self.lock() and self._held is not None:
            _remove(self.path)
            os.close(self._held)
            self._held = None

    def _make(self) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path, 0o700)
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(self.path)
            if not _is_private(found):
                raise PermissionError(
                    f"`{self.path}` belongs to user {found.st_uid} or is open to others, so the "
                    "data service cannot put its sockets there; start the workers' job again: it "
                    "will use another folder"
                )


def _reserved(tunnel: _native.Tunnel) -> int:
    try:
        return tunnel.reserve()
    except OSError as error:
        raise RuntimeError(
            f"this system does not let a process filter its own sockets ({error}), and without "
            "that anyone could reach TensorFlow's data servers; start the data service outside "
            "this sandbox or container"
        ) from error


def _sweep() -> None:
    """Removes folders left by killed processes of this user: those whose lock is free."""
    with os.scandir(_PARENT) as entries:
        found = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    for path in found:
        with contextlib.suppress(OSError):
            if not _is_private(os.lstat(path)):
                continue
            handle = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _locked(handle):
                    for name in os.listdir(path):
                        if name != _LOCK:
                            os.unlink(os.path.join(path, name))
                    _remove(path)
            finally:
                os.close(handle)


def _remove(path: str) -> None:
    """Removes a folder whose lock this process holds, unless it contains live sockets."""
    with contextlib.suppress(OSError):
        if os.listdir(path) == [_LOCK]:
            os.unlink(os.path.join(path, _LOCK))
            os.rmdir(path)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is(handle: int, path: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), os.stat(path))
    return False


def _is_private(found: os.stat_result) -> bool:
    is_own = found.st_uid == os.geteuid() and stat.S_ISDIR(found.st_mode)
    return is_own and not found.st_mode & 0o077
