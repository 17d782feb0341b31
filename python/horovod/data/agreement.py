"""How ranks whose numbers of rows nobody knows beforehand agree on how many batches to take.

Every collective is called by the thread that takes the batches, at the same batch on all ranks, so
ranks that stop at the same step leave nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from horovod.data.columns import Batch
from horovod.data.load_ahead import LoadAhead


def least(value: int) -> int:
    """The smallest value of all ranks."""
    from horovod import raw

    return int(raw.allreduce(np.array([value]), op=raw.Min, name="horovod.data.least")[0])


def most(value: int) -> int:
    """The largest value of all ranks."""
    return -least(-value)


def in_step(batches: Iterator[Batch], room: int) -> Iterator[Batch]:
    """As many batches on every rank as on the one that has the fewest.

    The ranks agree once for all batches that are loaded ahead: when each has `room` of them, or
    those that it has left, all can take as many as the rank with the fewest.
    """
    loading = LoadAhead([batches], room)
    try:
        epoch = loading.epoch()
        while True:
            certain = loading.certain()
            agreed = least(certain)
            yield from islice(epoch, agreed)
            if agreed < room:
                break
        if agreed == certain:
            yield from epoch  # only the end is left, or the error
    finally:
        loading.close()
