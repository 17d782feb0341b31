"""Test inputs for the ranks of a job, and the expected results, computed with NumPy."""

from functools import cache

import numpy as np

from horovod.raw import rank, size

__all__ = ["adasum", "differ", "everyones", "mine", "rank", "ranks", "share", "size"]


def ranks():
    return range(size())


def everyones(shape, seed=0):
    """The arrays of all ranks: small integers, so that every element type is exact."""
    return [_made(shape, seed, each) for each in ranks()]


def mine(arrays):
    return arrays[rank()]


def share(array, place=None, members=None):
    """One rank's rows of an array that is split among the ranks; the first ranks get one more."""
    parts = np.array_split(array, size() if members is None else members)
    return parts[rank() if place is None else place]


@cache
def _made(shape, seed, each):
    array = np.asarray(np.random.default_rng([seed, each]).integers(0, 4, shape))
    # Tests share the array.
    array.setflags(write=False)
    return array


def differ(value, other):
    """One value on rank 0, another one on the others."""
    return value if rank() == 0 else other


def adasum(arrays):
    """The Adasum of the arrays of all ranks; ranks beyond a power of two are combined first."""
    level = [array.astype("float64") for array in arrays]
    half = 1 << (len(level).bit_length() - 1)
    surplus = len(level) - half
    level = [_pair(level[at], level[at + half]) for at in range(surplus)] + level[surplus:half]
    while len(level) > 1:
        level = [_pair(a, b) for a, b in zip(level[::2], level[1::2])]
    return level[0]


def _pair(a, b):
    """The Adasum of two arrays, by definition."""
    dot, left, right = (a * b).sum(), (a * a).sum(), (b * b).sum()
    factors = [1 - dot / (2 * square) if square else 1.0 for square in (left, right)]
    return factors[0] * a + factors[1] * b
