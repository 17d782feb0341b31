"""Alltoall and reducescatter with Horovod's names, argument orders and defaults.

`mpi_ops` re-exports them; Horovod's users find all collectives there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import torch

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import exchange, submit
from horovod.torch.compression import Compression, Compressor
from horovod.torch.splits import Splits, rows_to_send
from horovod.torch.submit import Average

Received = Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]


def alltoall(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Received:
    """The rows that all ranks have for this one; gradients flow through it.

    `splits` has, for each rank, how many rows it gets; without, all get the same. Rows beyond these
    stay here. With `splits` the result is a pair: the rows, and how many came from each rank.
    """
    received, numbers = exchange.alltoall(tensor, splits, name, process_set)
    return received if splits is None else (received, numbers)


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an exchange of rows; the result is that of `alltoall`."""
    rows = rows_to_send(tensor, splits, process_set)
    flight = submit.alltoall(submit.readable(tensor), rows, name, process_set)
    flight.tells_splits = splits is not None
    return flight.keep()


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """This rank's rows of the reduction of `tensor`; gradients flow through it.

    Rows are dealt out evenly; if some are left over, the first ranks have one more.
    """
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
    """Starts a reduction of which this rank gets its rows."""
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
    """This rank's rows of several reductions that run as one; gradients flow through it."""
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
    """Starts several reductions of which this rank gets its rows."""
    how = (name, op, prescale_factor, postscale_factor, process_set)
    sources = [submit.readable(tensor) for tensor in tensors]
    return submit.grouped_reducescatter(sources, *how).keep()
