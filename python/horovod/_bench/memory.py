"""The memory to measure on, mapped directly so that no framework and no NumPy is needed.

All systems of a process use the same memory, so that caching is the same for all.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from dataclasses import dataclass

from horovod._bench import models

FORMATS = {
    "float32": "f",
    "float64": "d",
    "float16": "e",
    "uint8": "B",
    "int8": "b",
    "uint16": "H",
    "int16": "h",
    "int32": "i",
    "int64": "q",
}
# A cache line: tensors of one step do not share one.
GRAIN = 64


class Device:
    """The device of a tensor, in torch's terms."""

    type = "cpu"


class Tensor:
    """A piece of memory that the native module accepts, because it looks like a torch tensor."""

    __slots__ = ("address", "dtype", "shape")

    device = Device()

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str) -> None:
        self.address = address
        self.shape = shape
        self.dtype = dtype

    def data_ptr(self) -> int:
        """The address of the first element."""
        return self.address

    def is_contiguous(self) -> bool:
        """Always true: a tensor is a row of elements."""
        return True


class Mapping:
    """Private memory of the process, with its address and its buffer."""

    def __init__(self, length: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.length = length
        self.buffer = mmap.mmap(-1, max(1, length), flags=flags)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))

    def fill(self, element: bytes) -> None:
        """Writes every element, so that every page is mapped."""
        piece = element * ((1 << 20) // len(element))
        for start in range(0, self.length, len(piece)):
            end = min(self.length, start + len(piece))
            self.buffer[start:end] = piece[: end - start]


@dataclass(frozen=True)
class Task:
    """What to measure: a collective, and how many bytes each rank submits."""

    collective: str
    bytes: int
    dtype: str
    ranks: int

    @property
    def element(self) -> int:
        """Bytes of an element."""
        return len(encode(0, self.dtype))

    @property
    def counts(self) -> list[int]:
        """The number of elements of each tensor; tensors that are split by rank divide evenly."""
        if self.collective in models.STEPS:
            return models.STEPS[self.collective]()
        if self.collective == "barrier":
            return []
        count = max(1, self.bytes // self.element)
        if self.collective in ("alltoall", "reducescatter"):
            count = -(-count // self.ranks) * self.ranks
        return [count]

    @property
    def total(self) -> int:
        """Bytes of all tensors of a rank."""
        return sum(self.counts) * self.element


class Memory:
    """The tensors of a task in `source`, and space for a result or a copy in `target`."""

    def __init__(self, task: Task) -> None:
        self.task = task
        sizes = [count * task.element for count in task.counts]
        ends = [0]
        for size in sizes:
            ends.append(ends[-1] + -(-size // GRAIN) * GRAIN)
        self.places = list(zip(ends, sizes))
        parts = task.ranks if task.collective == "allgather" else 1
        self.source = Mapping(ends[-1])
        self.target = Mapping(ends[-1] * parts)
        self.zero()

    def tensors(self, start: int | None = None) -> list[Tensor]:
        """The tensors in `source`, or the same tensors in memory that starts at another address."""
        start = self.source.address if start is None else start
        return [
            Tensor(start + place, (count,), self.task.dtype)
            for (place, _), count in zip(self.places, self.task.counts)
        ]

    def zero(self) -> None:
        """Zeroes everything: sums of zeros do not overflow, however often they are repeated."""
        for mapping in (self.source, self.target):
            mapping.fill(encode(0, self.task.dtype))

    def mark(self, rank: int) -> None:
        """Fills `source` with the value that belongs to a rank."""
        self.source.fill(encode(own(rank), self.task.dtype))

    def check(self, address: int) -> None:
        """Checks the first and last element of each part of the result at this address."""
        task, size = self.task, self.task.element
        total = sum(own(rank) for rank in range(task.ranks))
        for place, length in self.places:
            parts = [(place, length, total)]
            if task.collective == "broadcast":
                parts = [(place, length, own(0))]
            elif task.collective == "reducescatter":
                parts = [(0, length // task.ranks, total)]
            elif task.collective in ("allgather", "alltoall"):
                share = length if task.collective == "allgather" else length // task.ranks
                parts = [(rank * share, share, own(rank)) for rank in range(task.ranks)]
            for start, length, value in parts:
                for at in (start, start + length - size):
                    found = ctypes.string_at(address + at, size)
                    if found != encode(value, task.dtype):
                        raise ValueError(f"{task} gave {found!r} at byte {at}, not {value}")


def own(rank: int) -> int:
    """The value that a rank contributes; sums stay small enough for every element type."""
    return rank % 3 + 1


def encode(value: int, dtype: str) -> bytes:
    """A number as an element."""
    if dtype == "bfloat16":
        return struct.pack("<f", value)[2:]
    return struct.pack("<" + FORMATS[dtype], value)
