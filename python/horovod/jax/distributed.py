"""Setting up `jax.distributed` for the ranks of a job, for programs that use JAX's own collectives.

Nothing else in `horovod.jax` needs it: without it, JAX on each rank sees only its own devices.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import jax

from horovod import _native
from horovod.common import environment
from horovod.common.basics import _basics
from horovod.common.objects import broadcast_object

__all__ = [
    "init_jax_distributed",
]


def init_jax_distributed(
    local_device_ids: int | Sequence[int] | None = None, **options: Any
) -> None:
    """Call `jax.distributed.initialize` with the ranks of the job.

    Only for programs that use JAX's own collectives. Call it after `init`, and before anything that
    makes JAX look for devices.

    Args:
        local_device_ids: Devices of this process, as `jax.distributed.initialize` takes them
            (default: all).
        **options: Further arguments of `jax.distributed.initialize`.

    Raises:
        ValueError: If Horovod is not initialized.
    """
    address = broadcast_object(
        _own_address() if _basics.rank() == 0 else None, 0, "jax_distributed"
    )
    jax.distributed.initialize(
        coordinator_address=address,
        num_processes=_basics.size(),
        process_id=_basics.rank(),
        local_device_ids=local_device_ids,
        **options,
    )


def _own_address() -> str:
    """An address of this host that the other ranks can reach, with a port that is free now."""
    host = "127.0.0.1"
    if _basics.local_size() != _basics.size():
        host = environment.host() or socket.gethostname()
    return f"{host}:{_native.free_port()}"
