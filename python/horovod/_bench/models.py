"""The gradients of two well-known models: their sizes in elements, in backward order."""

from __future__ import annotations

from collections.abc import Callable
from math import prod


def resnet50() -> list[int]:
    """The 161 parameters of ResNet-50, 97 MiB in float32."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    width = 64
    for inner, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            outer = inner * 4
            shapes += [(inner, width, 1, 1), (inner,), (inner,)]
            shapes += [(inner, inner, 3, 3), (inner,), (inner,)]
            shapes += [(outer, inner, 1, 1), (outer,), (outer,)]
            if block == 0:
                shapes += [(outer, width, 1, 1), (outer,), (outer,)]
            width = outer
    shapes += [(1000, width), (1000,)]
    return [prod(shape) for shape in reversed(shapes)]


def bert() -> list[int]:
    """The 199 parameters of BERT-base, 418 MiB in float32."""
    width, inner = 768, 3072
    square: list[tuple[int, ...]] = [(width, width), (width,)]
    norm: list[tuple[int, ...]] = [(width,), (width,)]
    shapes: list[tuple[int, ...]] = [(30522, width), (512, width), (2, width), *norm]
    for _ in range(12):
        shapes += [*square, *square, *square, *square, *norm]
        shapes += [(inner, width), (inner,), (width, inner), (width,), *norm]
    shapes += square
    return [prod(shape) for shape in reversed(shapes)]


STEPS: dict[str, Callable[[], list[int]]] = {"resnet50": resnet50, "bert": bert}

# The bucket size of torch's own data-parallel wrapper.
BUCKET_BYTES = 25 << 20


def buckets(places: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Groups tensors, given by index and bytes, into buckets that are reduced as one."""
    rows: list[list[tuple[int, int]]] = []
    room = 0
    for place, size in places:
        if size > room or not rows:
            rows.append([])
            room = BUCKET_BYTES
        rows[-1].append((place, size))
        room -= size
    return rows
