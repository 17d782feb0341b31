"""Meeting by a library call, for programs that start the processes of a world themselves.

Rank 0 listens before anybody else knows where, so there is no race for a port, and hands its
invitation on however the program likes. No environment variable is read or changed.
"""

from __future__ import annotations

from horovod import _native

__all__ = ["open_rendezvous", "use_rendezvous"]


def open_rendezvous(size: int) -> str:
    """Open the rendezvous of a world whose rank 0 this process will be.

    It listens at once. Hand the invitation to the other processes over a channel that nobody else
    can read: it contains the key of the world. A second call replaces the rendezvous of the first.

    Args:
        size: Number of ranks.

    Returns:
        The invitation, a text of a few lines, for `use_rendezvous` or `hvd.init`.

    Raises:
        ValueError: If the size is not positive, a world is running in this process, or it cannot
            listen.

    Example:
        ```python
        import horovod
        import horovod.torch as hvd

        invitation = horovod.open_rendezvous(size=1)  # on rank 0; send it to the other ranks
        hvd.init(rank=0, size=1, invitation=invitation)
        ```
    """
    if size < 1:
        raise ValueError(f"size is {size}; a world has at least one rank")
    _refuse_while_running()
    return _native.open_rendezvous(size)


def use_rendezvous(
    invitation: str | None, rank: int = 0, size: int = 1, host: str | None = None
) -> None:
    """Have the next `hvd.init()` of this process join the world of an invitation.

    For programs that start processes in which other people's code calls `hvd.init()`. What the
    environment says about ranks no longer counts. After `hvd.shutdown()`, the same ranks can call
    `hvd.init()` again.

    Args:
        invitation: What `open_rendezvous` returned on rank 0; None to let the environment count
            again.
        rank: The rank of this process; rank 0 is the one that opened the rendezvous (default: 0).
        size: Number of ranks (default: 1).
        host: The identity of this host (default: its host name). Ranks with the same one share a
            host, and their local ranks follow from that.

    Raises:
        ValueError: If the invitation or the rank is invalid, or a world is running in this process.
    """
    _refuse_while_running()
    if not 0 <= rank < size:
        raise ValueError(f"rank is {rank} and size is {size}; the rank must be less than the size")
    _native.use_rendezvous(invitation, rank, size, host)


def _refuse_while_running() -> None:
    if _native.is_initialized():
        raise ValueError("Horovod is running in this process; call hvd.shutdown() first")
