"""The collectives with Horovod's names, argument orders and defaults.

Every function checks and normalises its arguments here and leaves the rest to `submit`,
`autograd` and `handles`. A name that ends in `_` works in place, one with `async` gives a handle.
"All ranks" are those of the process set; ranks in arguments are ranks of the world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from horovod import _native
from horovod.common import world as _world
from horovod.common.basics import _basics  # noqa: F401  (programs look for it here)
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    registered_id,
    remove_process_set,
    restart_unnamed,
)
from horovod.common.world import *  # noqa: F403
from horovod.torch import autograd, submit
from horovod.torch.compression import Compression, Compressor
from horovod.torch.exchange_ops import (
    alltoall,
    alltoall_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from horovod.torch.handles import poll, synchronize
from horovod.torch.sparse import SparseReduction
from horovod.torch.submit import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    handle_average_backwards_compatibility,
)

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "handle_average_backwards_compatibility",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "sparse_allreduce_async",
    "synchronize",
    *_world.__all__,
]


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The reduction of `tensor` over all ranks; gradients flow through it."""
    op = handle_average_backwards_compatibility(op, average)
    compressed, context = compression.compress(tensor)
    reduced = autograd.allreduce(
        compressed, name, op, prescale_factor, postscale_factor, process_set
    )
    whole: torch.Tensor = compression.decompress(reduced, context)
    return whole


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts the reduction of `tensor`, which must not change before it is done."""
    op = handle_average_backwards_compatibility(op, average)
    source = submit.readable(tensor)
    target = torch.empty_like(source)
    return submit.allreduce(
        source, target, name, op, prescale_factor, postscale_factor, process_set
    )


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces `tensor` over all ranks, in place."""
    op = handle_average_backwards_compatibility(op, average)
    submit.in_place(tensor)
    _native.wait(
        submit.allreduce(
            tensor, tensor, name, op, prescale_factor, postscale_factor, process_set, lazy=True
        )
    )
    return tensor


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts the reduction of `tensor` in place."""
    op = handle_average_backwards_compatibility(op, average)
    submit.in_place(tensor)
    return submit.allreduce(
        tensor, tensor, name, op, prescale_factor, postscale_factor, process_set
    )


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """The reductions of several tensors as one operation; gradients flow through it."""
    op = handle_average_backwards_compatibility(op, average)
    pairs = [compression.compress(tensor) for tensor in tensors]
    compressed = [tensor for tensor, _ in pairs]
    reduced = autograd.grouped_allreduce(
        compressed, name, op, prescale_factor, postscale_factor, process_set
    )
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, pairs)]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts the reductions of several tensors, which must not change before they are done."""
    op = handle_average_backwards_compatibility(op, average)
    sources = [submit.readable(tensor) for tensor in tensors]
    targets = [torch.empty_like(source) for source in sources]
    return submit.grouped_allreduce(
        sources, targets, name, op, prescale_factor, postscale_factor, process_set
    )


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces several tensors in place, as one operation."""
    op = handle_average_backwards_compatibility(op, average)
    targets = [submit.in_place(tensor) for tensor in tensors]
    synchronize(
        submit.grouped_allreduce(
            targets, targets, name, op, prescale_factor, postscale_factor, process_set, lazy=True
        )
    )
    return targets


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts the reductions of several tensors in place."""
    op = handle_average_backwards_compatibility(op, average)
    targets = [submit.in_place(tensor) for tensor in tensors]
    return submit.grouped_allreduce(
        targets, targets, name, op, prescale_factor, postscale_factor, process_set
    )


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The rows of all ranks, one behind the other; gradients flow through it.

    Ranks may contribute different numbers of rows.
    """
    return autograd.allgather(tensor, name, process_set)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts gathering the rows of all ranks."""
    return submit.allgather(submit.readable(tensor), name, process_set).keep()


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """The rows of all ranks for several tensors, as one operation; gradients flow through it."""
    return autograd.grouped_allgather(tensors, name, process_set)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts gathering the rows of all ranks for several tensors."""
    sources = [submit.readable(tensor) for tensor in tensors]
    return submit.grouped_allgather(sources, name, process_set).keep()


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The tensor of rank `root_rank`; gradients flow through it."""
    return autograd.broadcast(tensor, root_rank, name, process_set)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a broadcast of the tensor of rank `root_rank`."""
    source = submit.readable(tensor)
    return submit.broadcast(source, torch.empty_like(source), root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Overwrites `tensor` with that of rank `root_rank`."""
    submit.in_place(tensor)
    _native.wait(submit.broadcast(tensor, tensor, root_rank, name, process_set, lazy=True))
    return tensor


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts overwriting `tensor` with that of rank `root_rank`."""
    submit.in_place(tensor)
    return submit.broadcast(tensor, tensor, root_rank, name, process_set)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Starts the reduction of a sparse tensor; call what you get to wait for the result."""
    return SparseReduction(tensor, name, op, process_set).wait


def join(device: int = -1) -> int:
    """Says that this rank is out of data, and waits until all ranks have said so.

    Until then the others' reductions take zeros from this rank, and averages still divide by the
    number of all. Gives the rank that came last. `device` is accepted for Horovod's sake.
    """
    last: int = _native.wait(_native.join(True))
    restart_unnamed()
    return last


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every rank has come here."""
    _native.wait(_native.barrier("barrier.noname", True, registered_id(process_set)))
