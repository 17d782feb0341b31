"""How many rows of a tensor go to each rank in an alltoall, with Horovod's checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import torch

from horovod.common.calls import equal_splits
from horovod.common.process_sets import ProcessSet, registered_id
from horovod.torch.submit import check_tensor

Splits = Union[Sequence[int], torch.Tensor]


def rows_to_send(tensor: torch.Tensor, splits: Splits | None, process_set: ProcessSet) -> list[int]:
    """The number of rows for each member: `splits`, or equal shares."""
    registered_id(process_set)
    members = process_set.size() or 1
    check_tensor(tensor)
    if tensor.dim() == 0:
        raise ValueError("alltoall does not support scalar inputs: add a first dimension")
    length = tensor.shape[0]
    if splits is None:
        return equal_splits(length, members)
    rows = _whole_numbers(splits)
    if len(rows) != members:
        raise ValueError(
            "Number of entries in splits does not equal number of workers. There are "
            f"{len(rows)} entries for {members} workers."
        )
    if min(rows) < 0:
        raise ValueError(f"alltoall expects splits that are not negative, got {rows}")
    if sum(rows) > length:
        raise ValueError(
            "Sum of splits entries is greater than the first dimension of tensor. The sum is "
            f"{sum(rows)}, the dimension {length}."
        )
    return rows


def _whole_numbers(splits: Splits) -> list[int]:
    given = splits if isinstance(splits, torch.Tensor) else torch.as_tensor(splits)
    if given.dim() != 1:
        raise ValueError(f"alltoall expects a 1D splits tensor, got {given.dim()} dimensions")
    # A list of Python integers has no width, and an empty list no type.
    counted = given.dtype == torch.int32 or (given is not splits and given.dtype == torch.int64)
    if not counted and given.numel() > 0:
        raise ValueError(
            "alltoall expects splits to contain 32-bit integer elements. These are "
            f"{str(given.dtype).rpartition('.')[2]}; convert them with `.int()`."
        )
    return [int(number) for number in given.tolist()]
