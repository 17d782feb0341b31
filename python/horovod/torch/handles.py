"""Waiting for submitted operations.

A handle is a number of the native module. Results that need work in Python, which are tensors whose
size the native module determines and groups of several element types, are kept in
`_basics.pending` under their handle until they are requested.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from horovod import _native
from horovod.common.basics import _basics

# The native module counts up from zero; a group needs a number that it never uses.
_group_handles = itertools.count(1 << 62)


def poll(handle: int) -> bool:
    """Return whether an asynchronous operation is done.

    Args:
        handle: What an `_async` function returned.

    Returns:
        True if `synchronize` would return at once.

    Raises:
        ValueError: If the handle is unknown or was synchronized before.
    """
    waiting = _basics.pending.get(handle)
    return _native.poll(handle) if waiting is None else waiting.poll()


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous operation and return its result.

    Args:
        handle: What an `_async` function returned; each can be synchronized once.

    Returns:
        What the blocking form of the operation returns; None for a handle that is unknown or was
        synchronized before.

    Raises:
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
    """
    waiting = _basics.pending.pop(handle, None)
    if waiting is None:
        return _native.wait(handle)
    try:
        return waiting.wait()
    except KeyboardInterrupt:
        # The operation is still in flight, and the user may wait for it again.
        _basics.pending[handle] = waiting
        raise


class Like:
    """What a result has in common with the submitted tensor: everything but the rows."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._dtype = tensor.dtype
        self._row_shape = tensor.shape[1:]

    def tensor(self, result: tuple[Any, list[int]]) -> torch.Tensor:
        """Makes a tensor from a capsule of bytes, which it then owns, and its numbers of rows."""
        capsule, rows = result
        if isinstance(capsule, torch.Tensor):
            # A tensor on a GPU, from torch's own memory.
            return capsule
        shape = (sum(rows), *self._row_shape)
        if 0 in shape:
            return torch.empty(shape, dtype=self._dtype)
        flat: torch.Tensor = from_dlpack(capsule)
        return flat.view(self._dtype).view(shape)


class Gather:
    """An allgather in flight, or another operation with a different number of result rows."""

    def __init__(self, handle: int, tensor: torch.Tensor) -> None:
        self._handle = handle
        self._like = Like(tensor)

    def keep(self) -> int:
        """Stores it for `synchronize`, and returns the handle."""
        _basics.pending[self._handle] = self
        return self._handle

    def poll(self) -> bool:
        """Whether `wait` would return at once."""
        return _native.poll(self._handle)

    def wait(self) -> Any:
        """Waits for the rows of all ranks, concatenated."""
        return self.wait_with_rows()[0]

    def wait_with_rows(self) -> tuple[torch.Tensor, list[int]]:
        """Waits for the rows, and for how many each rank contributed."""
        result = _native.wait(self._handle)
        return self._like.tensor(result), result[1]


class Exchange(Gather):
    """An alltoall in flight."""

    tells_splits = True
    """Whether the result includes how many rows came from each rank."""

    def wait(self) -> Any:
        """Waits for the received rows, and returns their numbers if requested."""
        received, rows = self.wait_with_rows()
        return (received, torch.tensor(rows, dtype=torch.int32)) if self.tells_splits else received


class Group:
    """A grouped operation: one native group for each element type."""

    def __init__(self, parts: Sequence[tuple[int, Sequence[int]]], length: int) -> None:
        self._parts = list(parts)
        self._results: list[Any] = [None] * length

    def keep(self) -> int:
        """Stores it for `synchronize`, and returns the handle."""
        handle = next(_group_handles)
        _basics.pending[handle] = self
        return handle

    def poll(self) -> bool:
        """Whether `wait` would return at once."""
        return all(_native.poll(handle) for handle, _ in self._parts)

    def wait(self) -> list[Any]:
        """Waits for the results of all parts; returns them in the order of the tensors."""
        while self._parts:
            handle, positions = self._parts[-1]
            for position, result in zip(positions, _native.wait(handle)):
                self._results[position] = result
            # Only now, so that an interrupted wait can be repeated.
            self._parts.pop()
        return self._results


class GatherGroup(Group):
    """A grouped operation whose results have different numbers of rows."""

    def __init__(
        self, parts: Sequence[tuple[int, Sequence[int]]], tensors: Sequence[torch.Tensor]
    ) -> None:
        super().__init__(parts, len(tensors))
        self._likes = [Like(tensor) for tensor in tensors]

    def wait(self) -> list[torch.Tensor]:
        """Waits for the tensors; returns them in order."""
        return [tensor for tensor, _ in self.wait_with_rows()]

    def wait_with_rows(self) -> list[tuple[torch.Tensor, list[int]]]:
        """Waits for the tensors, each with the numbers of rows that the ranks contributed."""
        results = super().wait()
        return [(like.tensor(result), result[1]) for like, result in zip(self._likes, results)]
