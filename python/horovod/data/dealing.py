"""Which rows each shard reads, and how many batches it makes of them. Pure arithmetic.

Shards get consecutive ranges of rows that differ by at most one row, so every shard can work out
the numbers of all others, and nobody has to ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

UNEVEN = ("drop", "repeat", "join")


@dataclass(frozen=True)
class Shard:
    """One of `count` parts of a dataset."""

    index: int
    count: int

    def part(self, index: int, count: int) -> Shard:
        """One of `count` parts of this one."""
        return Shard(self.index * count + index, self.count * count)

    def rows(self, total: int) -> range:
        """The rows of this shard, out of `total`."""
        return range(total * self.index // self.count, total * (self.index + 1) // self.count)


class Piece(NamedTuple):
    """Rows of one row group: skip some, then take some."""

    group: int
    skip: int
    take: int


def pieces(order: Sequence[int], sizes: Sequence[int], rows: range) -> list[Piece]:
    """The row groups, taken in this order, in which a range of rows lies."""
    found, start = [], 0
    for group in order:
        stop = start + sizes[group]
        first, last = max(start, rows.start), min(stop, rows.stop)
        if first < last:
            found.append(Piece(group, first - start, last - first))
        start = stop
    return found


def rows_to_take(total: int, shard: Shard, batch_size: int, uneven: str) -> int:
    """How many rows a shard turns into batches; more than it has if it has to repeat some."""
    fewest, most = total // shard.count, -(-total // shard.count)
    if uneven == "drop":
        return fewest // batch_size * batch_size
    if uneven == "repeat":
        return -(-most // batch_size) * batch_size
    return len(shard.rows(total))
