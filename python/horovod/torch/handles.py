"""Waiting for what was submitted.

A handle is the native module's number. Results that need work in Python, an allgather's tensor
and a group of several element types, are kept in `_basics.pending` under their handle until
somebody asks for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from horovod import _native
from horovod.common.basics import _basics

# The native module counts from zero; a mixed group needs a number that it will never give.
_mixed_handles = itertools.count(1 << 62)


def poll(handle: int) -> bool:
    """Whether `synchronize` would return at once."""
    waiting = _basics.pending.get(handle)
    return _native.poll(handle) if waiting is None else waiting.poll()


def synchronize(handle: int) -> Any:
    """Waits for a handle and gives its result; None for a handle that is not known."""
    waiting = _basics.pending.pop(handle, None)
    if waiting is None:
        return _native.wait(handle)
    try:
        return waiting.wait()
    except KeyboardInterrupt:
        # The work is still in flight, and the user may come back for it.
        _basics.pending[handle] = waiting
        raise


class Gather:
    """An allgather in flight."""

    def __init__(self, handle: int, tensor: torch.Tensor) -> None:
        self._handle = handle
        self._dtype = tensor.dtype
        self._row_shape = tensor.shape[1:]

    def keep(self) -> int:
        """Puts it where `synchronize` finds it, and gives the handle."""
        _basics.pending[self._handle] = self
        return self._handle

    def poll(self) -> bool:
        """Whether `wait` would return at once."""
        return _native.poll(self._handle)

    def wait(self) -> torch.Tensor:
        """The rows of all ranks, one behind the other."""
        return self.wait_with_rows()[0]

    def wait_with_rows(self) -> tuple[torch.Tensor, list[int]]:
        """The same, and how many rows each rank contributed."""
        capsule, rows = _native.wait(self._handle)
        shape = (sum(rows), *self._row_shape)
        if 0 in shape:
            return torch.empty(shape, dtype=self._dtype), rows
        flat: torch.Tensor = from_dlpack(capsule)
        return flat.view(self._dtype).view(shape), rows


class MixedGroup:
    """A grouped operation over several element types: one native group for each of them."""

    def __init__(self, parts: Sequence[tuple[int, Sequence[int]]], length: int) -> None:
        self._parts = list(parts)
        self._results: list[Any] = [None] * length

    def keep(self) -> int:
        """Puts it where `synchronize` finds it, and gives the handle."""
        handle = next(_mixed_handles)
        _basics.pending[handle] = self
        return handle

    def poll(self) -> bool:
        """Whether `wait` would return at once."""
        return all(_native.poll(handle) for handle, _ in self._parts)

    def wait(self) -> list[Any]:
        """The results of all parts, in the order of the tensors."""
        while self._parts:
            handle, positions = self._parts[-1]
            for position, result in zip(positions, _native.wait(handle)):
                self._results[position] = result
            # Only now, so that an interrupted wait can be taken up again.
            self._parts.pop()
        return self._results
