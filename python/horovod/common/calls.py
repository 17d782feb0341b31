"""Rules for collectives that hold in every framework.

They cover names, groups of one element type, shares of rows, and what compiled programs pass to the
native handlers. No framework is imported here: tensors are only shapes and element types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from horovod.common.process_sets import (
    ProcessSet,
    global_process_set,
    next_unnamed,
    registered_id,
)
from horovod.common.reductions import Sum


def full_name(kind: str, name: str | None, process_set: ProcessSet) -> tuple[str, int]:
    """Return the name by which ranks match an operation, and the id of the process set."""
    number = registered_id(process_set)
    return f"{kind}.{name}" if name else f"{kind}.noname.{next_unnamed(number)}", number


def by_type(types: Iterable[Hashable]) -> list[list[int]]:
    """Return the indices of each element type, because a native group has only one type."""
    places: dict[Hashable, list[int]] = {}
    for place, each in enumerate(types):
        places.setdefault(each, []).append(place)
    return list(places.values())


def equal_splits(rows: int, members: int) -> list[int]:
    """Return how many rows each member gets from an alltoall without splits."""
    if rows % members:
        raise ValueError(
            "splits not provided, but first dimension of tensor is not an even multiple of the "
            f"number of workers. The tensor has {rows} rows for {members} workers."
        )
    return [rows // members] * members


def shares(rows: int, members: int) -> list[int]:
    """Return how many rows each member gets from a reducescatter: the first may get one more."""
    return [rows // members + (place < rows % members) for place in range(members)]


@dataclasses.dataclass(frozen=True)
class Call:
    """A collective in a compiled program, without its tensors; ranks match it by `name`."""

    kind: str
    name: str
    process_set: ProcessSet = global_process_set
    op: int = Sum
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0

    def number(self) -> int:
        """Return the id of the process set."""
        return registered_id(self.process_set)

    def members(self) -> int:
        """Return how many ranks take part."""
        return self.process_set.size() or 1

    def place(self) -> int:
        """Return this rank's index among them."""
        return self.process_set.rank() or 0

    def result(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of this rank's result for a tensor with this shape on all ranks."""
        if self.kind in ("allreduce", "broadcast"):
            return list(shape)
        if not shape:
            raise ValueError(f"{self.kind} needs a first dimension, and this is a scalar")
        rows, members = shape[0], self.members()
        if self.kind == "allgather":
            rows *= members
        elif self.kind == "alltoall":
            equal_splits(rows, members)
        else:
            rows = shares(rows, members)[self.place()]
        return [rows, *shape[1:]]

    def attributes(self) -> dict[str, Any]:
        """Return what the native handler needs, as strings, integers and floats."""
        attributes: dict[str, Any] = {"name": self.name, "set": self.number()}
        if self.kind in ("allreduce", "reducescatter"):
            attributes["op"] = int(self.op)
            attributes["prescale"] = float(self.prescale)
            attributes["postscale"] = float(self.postscale)
        if self.kind == "broadcast":
            attributes["root"] = self.root
        if self.kind == "alltoall":
            attributes["members"] = self.members()
        return attributes
