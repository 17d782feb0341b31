"""Values that a rank sends to the callbacks of `RayExecutor.run`, while it runs.

A rank that is an actor puts them into Ray's queue. A rank of an elastic job is a child of an agent,
and sends them to the actor that carries the agent, over a socket that it finds in its environment.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from horovod.common import environment
from horovod.common.basics import _basics

__all__ = ["configure", "log"]

_send: Callable[[Any], None] | None = None
_warned = False


def configure(queue: Any) -> None:
    """Set the queue of this process; it is done for ranks of `horovod.ray`.

    Args:
        queue: Where `log` puts values: an object with `put`, or None.
    """
    global _send
    _send = None if queue is None else queue.put


def log(info_dict: Any, chief_only: bool = True) -> None:
    """Send a value to the callbacks that were given to `run` or `execute`.

    Args:
        info_dict: The value; a dictionary by convention.
        chief_only: Whether only rank 0 sends it (default: True).
    """
    global _warned
    rank = _basics.rank() if _basics.is_initialized() else environment.rank()
    if chief_only and rank != 0:
        return
    send = _send or _to_the_actor()
    if send is not None:
        send(info_dict)
    elif not _warned:
        _warned = True
        warnings.warn(
            "ray_logger.log() has no effect: no callbacks were given to `run` or `execute`",
            stacklevel=2,
        )


def _to_the_actor() -> Callable[[Any], None] | None:
    """Connects to the actor of this rank's agent, the first time."""
    global _send
    found = environment.ray_log()
    if found is not None:
        from multiprocessing.connection import Client

        address, key = found
        _send = Client(address, authkey=key).send
    return _send
