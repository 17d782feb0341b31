"""Saved copies of arrays, and sending arrays from rank 0.

For frameworks whose variables are best accessed as NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from horovod import raw


def keep(arrays: Sequence[Any], kept: Sequence[Any]) -> list[Any]:
    """Copies arrays, into the memory of earlier copies where they fit."""
    made = []
    for position, array in enumerate(arrays):
        former = kept[position] if position < len(kept) else None
        if former is not None and former.shape == array.shape and former.dtype == array.dtype:
            np.copyto(former, array)
            made.append(former)
        else:
            made.append(np.array(array))
    return made


def from_rank_0(arrays: Sequence[Any], name: str) -> list[Any]:
    """Receives arrays of the same shapes from rank 0, all in flight at once."""
    # Sent as bytes, so that the engine need not know the element type: nothing is reduced.
    pending = [
        raw.broadcast_async(_bytes(array), 0, f"{name}.{number}")
        for number, array in enumerate(arrays)
    ]
    received = [each.wait() for each in pending]
    return [each.view(like.dtype).reshape(like.shape) for each, like in zip(received, arrays)]


def _bytes(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
