"""The actor that carries an agent of an elastic job.

Ray decides where it runs and notices when it dies; the agent connects to the job, starts a rank and
ends with the actor. What the rank logs arrives over a private socket.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, Listener
from typing import Any, NamedTuple

import ray

from horovod.common import environment
from horovod.runner.agents import Agent, Invitation

_LAST_WORDS_SECONDS = 4.0


class Site(NamedTuple):
    """Where a carrier runs."""

    hostname: str
    node_id: str
    address: str
    """The address of its node."""


class Load(NamedTuple):
    """What a carrier needs to know."""

    invitation: Invitation
    number: int
    """Its number, which names its host in the job."""
    env: Mapping[str, str]
    timeout: float
    queue: Any
    """Where values go that the rank logs, or None."""


class Carrier:
    """One slot of an elastic job, as an actor. Its methods are called from several threads."""

    def __init__(self) -> None:
        self._agent: Agent | None = None
        self._logged: Logged | None = None

    def site(self) -> Site:
        """Where it runs."""
        context = ray.get_runtime_context()
        address = ray.util.get_node_ip_address()
        return Site(socket.gethostname(), context.get_node_id(), address)

    def carry(self, load: Load) -> str | None:
        """Starts the agent and waits until it has ended; why it failed, if it has."""
        site = self.site()
        variables = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address, **load.env}
        if load.queue is not None:
            self._logged = Logged(load.queue)
            variables.update(self._logged.variables)
        self._agent = Agent(
            load.invitation,
            name=f"{site.hostname}-{load.number}",
            shared_host=site.node_id,
            env=variables,
            timeout=load.timeout,
        )
        try:
            self._agent.wait()
        except RuntimeError as error:
            return str(error)
        finally:
            if self._logged is not None:
                self._logged.finish()
        return None

    def leave(self) -> None:
        """Has the rank leave the job at its next commit."""
        if self._agent is not None:
            self._agent.stop()


class Logged:
    """A private socket on which the ranks of this actor send what they log."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._passing: list[threading.Thread] = []
        self._folder = tempfile.TemporaryDirectory(prefix="ronde-ray-")
        key = secrets.token_bytes(32)
        path = os.path.join(self._folder.name, "log")
        self._listener = Listener(path, family="AF_UNIX", authkey=key)
        self.variables = environment.for_ray_log(path, key)
        threading.Thread(target=self._accept, name="ronde-ray-log", daemon=True).start()

    def finish(self) -> None:
        """Passes on what ranks have sent that have ended, and stops listening."""
        with suppress(OSError):
            self._listener.close()
        for thread in self._passing:
            thread.join(_LAST_WORDS_SECONDS)
        self._folder.cleanup()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return
            except Exception as error:
                # Somebody without the key.
                print(f"ronde: a connection to the log failed: {error}", file=sys.stderr)
                continue
            thread = threading.Thread(target=self._pass_on, args=(connection,), daemon=True)
            self._passing.append(thread)
            thread.start()

    def _pass_on(self, connection: Connection) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._queue.put(connection.recv())
