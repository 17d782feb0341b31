"""The collectives with Horovod's names, argument orders and defaults.

Every function checks and normalizes its arguments here and leaves the rest to `submit`, `autograd`
and `handles`. A function whose name ends in `_` works in place, one with `async` returns a handle.
"All ranks" are those of the process set; ranks in arguments are ranks of the world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from horovod import _native, raw
from horovod.common import world as _world
from horovod.common.basics import _basics  # noqa: F401  (programs look for it here)
from horovod.common.compression import checked
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
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
    ReduceOp,
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
    "ReduceOp",
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
    """Reduce a tensor over all ranks and return the result.

    Gradients flow through it; the backward pass is also a collective, so all ranks must run it.

    Args:
        tensor: Tensor of any shape, the same on every rank.
        average: Deprecated, use `op`: True means `hvd.Average`, False means `hvd.Sum` (default:
            None).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).
        op: Reduction: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max`, `hvd.Product` or `hvd.Adasum`
            (default: `hvd.Average`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A new tensor with the shape and element type of `tensor`, the same on every rank.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.

    Example:
        ```python
        import torch
        import horovod.torch as hvd

        hvd.init()
        mean = hvd.allreduce(torch.ones(3) * hvd.rank())
        total = hvd.allreduce(torch.ones(3), op=hvd.Sum)
        ```
    """
    op = handle_average_backwards_compatibility(op, average)
    checked(compression)
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
    """Start reducing a tensor over all ranks.

    The input must not change before the operation is done.

    Args:
        tensor: Tensor of any shape, the same on every rank.
        average: Deprecated, use `op`: True means `hvd.Average`, False means `hvd.Sum` (default:
            None).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        op: Reduction: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max`, `hvd.Product` or `hvd.Adasum`
            (default: `hvd.Average`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A handle for `poll` and `synchronize`. The result is a new tensor.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.

    Example:
        ```python
        import torch
        import horovod.torch as hvd

        hvd.init()
        handle = hvd.allreduce_async(torch.ones(3), name="ones")
        # Do something else here.
        mean = hvd.synchronize(handle)
        ```
    """
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
    """Reduce a tensor over all ranks, in place.

    Gradients do not flow through it.

    Args:
        tensor: Contiguous tensor of any shape, the same on every rank. It is overwritten.
        average: Deprecated, use `op`: True means `hvd.Average`, False means `hvd.Sum` (default:
            None).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        op: Reduction: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max`, `hvd.Product` or `hvd.Adasum`
            (default: `hvd.Average`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        `tensor` itself.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
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
    """Start reducing a tensor over all ranks, in place.

    Args:
        tensor: Contiguous tensor of any shape, the same on every rank. It is overwritten.
        average: Deprecated, use `op`: True means `hvd.Average`, False means `hvd.Sum` (default:
            None).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        op: Reduction: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max`, `hvd.Product` or `hvd.Adasum`
            (default: `hvd.Average`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A handle for `poll` and `synchronize`. The result is `tensor` itself.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
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
    """Reduce several tensors over all ranks as one operation.

    Gradients flow through it; the backward pass is also a collective, so all ranks must run it.

    Args:
        tensors: Tensors; the same number and the same shapes on every rank. Element
            types may be mixed.
        average: Deprecated, use `op`: True means `hvd.Average`, False means `hvd.Sum` (default:
            None).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).
        op: Reduction: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max`, `hvd.Product` or `hvd.Adasum`
            (default: `hvd.Average`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        New tensors, in the order of `tensors`.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    op = handle_average_backwards_compatibility(op, average)
    checked(compression)
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
    """Start reducing several tensors over all ranks as one operation.

    The inputs must not change before the operation is done.

    Args:
        tensors: Tensors; the same number and the same shapes on every rank. Element
            types may be mixed.
        average: Deprecated, use `op`: True means `hvd.Average`, False means `hvd.Sum` (default:
            None).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        op: Reduction: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max`, `hvd.Product` or `hvd.Adasum`
            (default: `hvd.Average`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A handle for `poll` and `synchronize`. The result is a list of new tensors, in the order of
        `tensors`.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
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
    """Reduce several tensors over all ranks as one operation, in place.

    Gradients do not flow through it.

    Args:
        tensors: Contiguous tensors; the same number and the same shapes on every rank.
            They are overwritten. Element types may be mixed.
        average: Deprecated, use `op`: True means `hvd.Average`, False means `hvd.Sum` (default:
            None).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        op: Reduction: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max`, `hvd.Product` or `hvd.Adasum`
            (default: `hvd.Average`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        The tensors themselves, in the order of `tensors`.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
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
    """Start reducing several tensors over all ranks as one operation, in place.

    Args:
        tensors: Contiguous tensors; the same number and the same shapes on every rank.
            They are overwritten. Element types may be mixed.
        average: Deprecated, use `op`: True means `hvd.Average`, False means `hvd.Sum` (default:
            None).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        op: Reduction: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max`, `hvd.Product` or `hvd.Adasum`
            (default: `hvd.Average`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A handle for `poll` and `synchronize`. The result is a list of the tensors themselves.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    op = handle_average_backwards_compatibility(op, average)
    targets = [submit.in_place(tensor) for tensor in tensors]
    return submit.grouped_allreduce(
        targets, targets, name, op, prescale_factor, postscale_factor, process_set
    )


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate the tensors of all ranks along the first dimension.

    Gradients flow through it; the backward pass is also a collective, so all ranks must run it.

    Args:
        tensor: Tensor with at least one dimension. The first dimension may differ
            between ranks, the others must be the same.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A new tensor with the rows of all ranks, in the order of the ranks.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.

    Example:
        ```python
        import torch
        import horovod.torch as hvd

        hvd.init()
        rows = hvd.allgather(torch.full((hvd.rank() + 1, 2), hvd.rank()))
        ```
    """
    return autograd.allgather(tensor, name, process_set)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start concatenating the tensors of all ranks along the first dimension.

    The input must not change before the operation is done.

    Args:
        tensor: Tensor with at least one dimension. The first dimension may differ
            between ranks, the others must be the same.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A handle for `poll` and `synchronize`. The result is a new tensor.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    return submit.allgather(submit.readable(tensor), name, process_set).keep()


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """Concatenate several tensors of all ranks as one operation.

    Gradients flow through it; the backward pass is also a collective, so all ranks must run it.

    Args:
        tensors: Tensors with at least one dimension, the same number on every rank.
            First dimensions may differ between ranks, the others must be the same.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        New tensors, in the order of `tensors`.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    return autograd.grouped_allgather(tensors, name, process_set)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start concatenating several tensors of all ranks as one operation.

    The inputs must not change before the operation is done.

    Args:
        tensors: Tensors with at least one dimension, the same number on every rank.
            First dimensions may differ between ranks, the others must be the same.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A handle for `poll` and `synchronize`. The result is a list of new tensors, in the order of
        `tensors`.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    sources = [submit.readable(tensor) for tensor in tensors]
    return submit.grouped_allgather(sources, name, process_set).keep()


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Send a tensor from one rank to all others and return it.

    Gradients flow through it; the backward pass is also a collective, so all ranks must run it.

    Args:
        tensor: Tensor of any shape, the same on every rank.
        root_rank: Rank that sends, counted among all ranks of the job even if `process_set` is
            smaller.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A new tensor with what `tensor` holds on rank `root_rank`.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    return autograd.broadcast(tensor, root_rank, name, process_set)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start sending a tensor from one rank to all others.

    The input must not change before the operation is done.

    Args:
        tensor: Tensor of any shape, the same on every rank.
        root_rank: Rank that sends, counted among all ranks of the job even if `process_set` is
            smaller.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A handle for `poll` and `synchronize`. The result is a new tensor.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    source = submit.readable(tensor)
    return submit.broadcast(source, torch.empty_like(source), root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Overwrite a tensor with that of one rank.

    Gradients do not flow through it.

    Args:
        tensor: Contiguous tensor of any shape, the same on every rank. It is overwritten.
        root_rank: Rank that sends, counted among all ranks of the job even if `process_set` is
            smaller.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        `tensor` itself.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    submit.in_place(tensor)
    _native.wait(submit.broadcast(tensor, tensor, root_rank, name, process_set, lazy=True))
    return tensor


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start overwriting a tensor with that of one rank.

    Args:
        tensor: Contiguous tensor of any shape, the same on every rank. It is overwritten.
        root_rank: Rank that sends, counted among all ranks of the job even if `process_set` is
            smaller.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A handle for `poll` and `synchronize`. The result is `tensor` itself.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    submit.in_place(tensor)
    return submit.broadcast(tensor, tensor, root_rank, name, process_set)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start reducing a sparse tensor over all ranks.

    Indices and values of all ranks are gathered, and values with equal indices are summed.

    Args:
        tensor: Sparse COO tensor.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        op: Reduction: `hvd.Average` or `hvd.Sum`.
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A function without arguments that waits for the reduction and returns the result, a
        coalesced sparse tensor.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        ValueError: If the tensor is not sparse, or `op` is neither `hvd.Average` nor `hvd.Sum`.
    """
    return SparseReduction(tensor, name, op, process_set).wait


def join(device: int = -1) -> int:
    """Tell the other ranks that this one has no more data, and wait until all ranks have joined.

    Meanwhile this rank contributes zeros to the reductions of the others; averages still divide by
    the number of all ranks. Other collectives fail while some rank has joined.

    Args:
        device: Accepted for compatibility with Horovod (default: -1).

    Returns:
        The rank that joined last.

    Raises:
        HorovodInternalError: If a rank was lost.
        ValueError: If Horovod is not initialized.

    Example:
        ```python
        import torch
        import horovod.torch as hvd

        hvd.init()
        for batch in range(3 + hvd.rank()):  # ranks have different amounts of data
            hvd.allreduce(torch.ones(3), name=f"batch.{batch}")
        last = hvd.join()
        ```
    """
    return raw.join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks have called this function.

    Args:
        process_set: Ranks that take part (default: all ranks).

    Raises:
        HorovodInternalError: If a rank was lost.
        ValueError: If Horovod is not initialized, or this rank is not in `process_set`.
    """
    raw.barrier(process_set)
