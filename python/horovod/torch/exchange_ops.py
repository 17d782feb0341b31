"""Alltoall and reducescatter with Horovod's names, argument orders and defaults.

`mpi_ops` re-exports them, because Horovod has all collectives there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union, overload

import torch

from horovod.common.compression import checked
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import exchange, submit
from horovod.torch.compression import Compression, Compressor
from horovod.torch.splits import Splits, rows_to_send
from horovod.torch.submit import Average

Received = Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]


@overload
def alltoall(
    tensor: torch.Tensor,
    splits: None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor: ...


@overload
def alltoall(
    tensor: torch.Tensor,
    splits: Splits,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, torch.Tensor]: ...


def alltoall(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Received:
    """Send different rows of a tensor to different ranks.

    Gradients flow through it; the backward pass is also a collective, so all ranks must run it.

    Args:
        tensor: Tensor with at least one dimension. The first dimension may differ
            between ranks, the others must be the same.
        splits: How many rows each rank of `process_set` gets, in the order of the ranks: a sequence
            of integers or a 1-D integer tensor. Rows beyond their sum are not sent (default: the
            same number for every rank).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        The rows that the ranks sent to this one, in the order of the ranks. With `splits`, a pair:
        these rows, and how many came from each rank, as a 1-D int32 tensor.

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
        rows = torch.arange(2 * hvd.size())
        same = hvd.alltoall(rows)
        mine, received = hvd.alltoall(rows, splits=[2] * hvd.size())
        ```
    """
    received, numbers = exchange.alltoall(tensor, splits, name, process_set)
    return received if splits is None else (received, numbers)


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start sending different rows of a tensor to different ranks.

    The input must not change before the operation is done.

    Args:
        tensor: Tensor with at least one dimension. The first dimension may differ
            between ranks, the others must be the same.
        splits: How many rows each rank of `process_set` gets, in the order of the ranks: a sequence
            of integers or a 1-D integer tensor. Rows beyond their sum are not sent (default: the
            same number for every rank).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A handle for `poll` and `synchronize`. The result is that of `alltoall`.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    rows = rows_to_send(tensor, splits, process_set)
    pending = submit.alltoall(submit.readable(tensor), rows, name, process_set)
    pending.tells_splits = splits is not None
    return pending.keep()


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce a tensor over all ranks and return this rank's share of the rows.

    Rows are split evenly; if they do not divide by the number of ranks, the first ranks get one
    extra row. Gradients flow through it; the backward pass is also a collective, so all ranks must
    run it.

    Args:
        tensor: Tensor with at least one dimension, of the same shape on every rank.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).
        op: Reduction: `hvd.Average` or `hvd.Sum` (default: `hvd.Average`).
        process_set: Ranks that take part (default: all ranks).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).

    Returns:
        A new tensor with this rank's rows.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
        UnsupportedReductionError: If `op` is neither `hvd.Average` nor `hvd.Sum`; it is a
            `NotImplementedError` and a `ValueError`.
    """
    checked(compression)
    compressed, context = compression.compress(tensor)
    how = (name, op, prescale_factor, postscale_factor, process_set)
    share: torch.Tensor = compression.decompress(exchange.reducescatter(compressed, *how), context)
    return share


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a reduction of which this rank gets its share of the rows.

    The input must not change before the operation is done.

    Args:
        tensor: Tensor with at least one dimension, of the same shape on every rank.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        op: Reduction: `hvd.Average` or `hvd.Sum` (default: `hvd.Average`).
        process_set: Ranks that take part (default: all ranks).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).

    Returns:
        A handle for `poll` and `synchronize`. The result is a new tensor with this rank's rows.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
        UnsupportedReductionError: If `op` is neither `hvd.Average` nor `hvd.Sum`; it is a
            `NotImplementedError` and a `ValueError`.
    """
    how = (name, op, prescale_factor, postscale_factor, process_set)
    return submit.reducescatter(submit.readable(tensor), *how).keep()


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduce several tensors as one operation and return this rank's share of the rows.

    Rows are split evenly; if they do not divide by the number of ranks, the first ranks get one
    extra row. Gradients flow through it; the backward pass is also a collective, so all ranks must
    run it.

    Args:
        tensors: Tensors with at least one dimension; the same number and the same shapes
            on every rank. Element types may be mixed.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).
        op: Reduction: `hvd.Average` or `hvd.Sum` (default: `hvd.Average`).
        process_set: Ranks that take part (default: all ranks).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).

    Returns:
        New tensors with this rank's rows, in the order of `tensors`.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
        UnsupportedReductionError: If `op` is neither `hvd.Average` nor `hvd.Sum`; it is a
            `NotImplementedError` and a `ValueError`.
    """
    checked(compression)
    pairs = [compression.compress(tensor) for tensor in tensors]
    compressed = [tensor for tensor, _ in pairs]
    how = (name, op, prescale_factor, postscale_factor, process_set)
    shares = exchange.grouped_reducescatter(compressed, *how)
    return [compression.decompress(share, context) for share, (_, context) in zip(shares, pairs)]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start several reductions of which this rank gets its share of the rows.

    The inputs must not change before the operation is done.

    Args:
        tensors: Tensors with at least one dimension; the same number and the same shapes
            on every rank. Element types may be mixed.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        op: Reduction: `hvd.Average` or `hvd.Sum` (default: `hvd.Average`).
        process_set: Ranks that take part (default: all ranks).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).

    Returns:
        A handle for `poll` and `synchronize`. The result is a list of new tensors with this rank's
        rows.

    Raises:
        TypeError: If an input is not a `torch.Tensor`.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
        UnsupportedReductionError: If `op` is neither `hvd.Average` nor `hvd.Sum`; it is a
            `NotImplementedError` and a `ValueError`.
    """
    how = (name, op, prescale_factor, postscale_factor, process_set)
    sources = [submit.readable(tensor) for tensor in tensors]
    return submit.grouped_reducescatter(sources, *how).keep()
