"""Batches of equal size out of chunks of any size, in order or shuffled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from horovod.data.columns import Batch

# Rows that leave the buffer together: enough that the cost of choosing them does not matter.
_BLOCK_ROWS = 4096


def rows_of(batch: Batch) -> int:
    """The number of rows of a batch."""
    return len(next(iter(batch.values()))) if batch else 0


def cut(batch: Batch, start: int, stop: int) -> Batch:
    """Some of the rows, in the same memory."""
    return {name: array[start:stop] for name, array in batch.items()}


def in_order(chunks: Iterable[Batch], batch_size: int) -> Iterator[Batch]:
    """Batches of the chunks' own memory; one that spans chunks is a copy, the last may be short."""
    pieces: list[Batch] = []
    missing = batch_size
    for chunk in chunks:
        rows, start = rows_of(chunk), 0
        while rows - start >= missing:
            pieces.append(cut(chunk, start, start + missing))
            start += missing
            yield _joined(pieces)
            pieces, missing = [], batch_size
        if start < rows:
            pieces.append(cut(chunk, start, rows))
            missing -= rows - start
    if pieces:
        yield _joined(pieces)


def shuffled(
    chunks: Iterable[Batch], batch_size: int, room: int, random: np.random.Generator
) -> Iterator[Batch]:
    """Batches of rows drawn from a buffer of `room` rows; the last may be short.

    Rows go from a chunk into free places of the buffer. When none is free, random places are
    copied into a block of batches, and are free again.
    """
    room = max(room, batch_size)
    block = min(_BLOCK_ROWS, room) // batch_size * batch_size or batch_size
    buffer: Batch = {}
    free = np.arange(room)
    for chunk in chunks:
        rows, start = rows_of(chunk), 0
        buffer = buffer or _like(chunk, room)
        while start < rows:
            if not len(free):
                free = random.choice(room, block, replace=False)
                yield from _split(_gathered(buffer, free), batch_size)
            stop = min(rows, start + len(free))
            for name, array in chunk.items():
                buffer[name][free[: stop - start]] = array[start:stop]
            free, start = free[stop - start :], stop
    rest = random.permutation(np.setdiff1d(np.arange(room), free, assume_unique=True))
    for start in range(0, len(rest), block):
        yield from _split(_gathered(buffer, rest[start : start + block]), batch_size)


def _like(chunk: Batch, rows: int) -> Batch:
    return {name: np.empty((rows, *a.shape[1:]), a.dtype) for name, a in chunk.items()}


def _gathered(buffer: Batch, places: NDArray[np.int64]) -> Batch:
    return {name: array.take(places, axis=0) for name, array in buffer.items()}


def _split(block: Batch, batch_size: int) -> Iterator[Batch]:
    for start in range(0, rows_of(block), batch_size):
        yield cut(block, start, start + batch_size)


def _joined(pieces: list[Batch]) -> Batch:
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
