"""Alltoall: each rank gets a share of any number of rows."""

import numpy as np
import pytest
from world import everyones, mine, rank, ranks, size


def table(offset=0):
    """How many rows each rank sends to each other; some send none."""
    return [[(source + 2 * target + offset) % 4 for target in ranks()] for source in ranks()]


def exchanged(arrays, splits):
    """The rows that this rank gets from all ranks, and how many from each."""
    parts = [
        np.split(array[: sum(rows)], np.cumsum(rows)[:-1])[rank()]
        for array, rows in zip(arrays, splits)
    ]
    return np.concatenate(parts), [len(part) for part in parts]


@pytest.mark.over(form="alltoall", dtype="every")
def test_equal_shares_of_every_type(framework, form, dtype):
    cases = [everyones((2 * size(), *row)) for row in ((), (3,), (2, 2))]
    if dtype == "bool":
        cases = [[array > 1 for array in arrays] for arrays in cases]
    tensors = [framework.tensor(mine(arrays), dtype) for arrays in cases]
    for arrays, result in zip(cases, framework.each("alltoall", tensors, form=form)):
        expected, _ = exchanged(arrays, [[2] * size()] * size())
        assert framework.dtype(result) == dtype
        assert np.array_equal(framework.values(result), expected)


@pytest.mark.needs("ragged")
@pytest.mark.over(form="alltoall", dtype="every")
def test_shares_of_different_sizes(framework, form, dtype):
    offsets = range(4) if framework.has(["empty"]) else [1]
    for offset in offsets:
        splits = table(offset)
        arrays = everyones((4 * size() + 3, 2))
        # Rows beyond the splits are not sent.
        left = 3 if offset % 2 else 0
        arrays = [array[: sum(rows) + left] for array, rows in zip(arrays, splits)]
        if dtype == "bool":
            arrays = [array > 1 for array in arrays]
        expected, numbers = exchanged(arrays, splits)
        tensor = framework.tensor(mine(arrays), dtype)
        received, counts = framework.one("alltoall", tensor, mine(splits), form=form)
        assert framework.dtype(received) == dtype
        assert np.array_equal(framework.values(received), expected)
        assert framework.dtype(counts) == "int32"
        assert framework.values(counts).tolist() == numbers
        assert np.array_equal(framework.values(tensor), mine(arrays))


@pytest.mark.needs("ragged")
def test_splits_may_be_a_tensor(framework):
    splits = [each + 1 for each in ranks()]
    tensor = framework.tensor(np.full((sum(splits), 2), rank()))
    received, counts = framework.one("alltoall", tensor, framework.tensor(splits, "int32"))
    assert framework.values(received)[:, 0].tolist() == np.repeat(ranks(), rank() + 1).tolist()
    assert framework.values(counts).tolist() == [rank() + 1] * size()


@pytest.mark.needs("empty", "ragged")
def test_only_one_pair_may_exchange_rows(framework):
    last = size() - 1
    splits = [0] * last + [7] if rank() == 0 else [0] * size()
    received, counts = framework.one("alltoall", framework.tensor(np.ones((7, 2))), splits)
    rows = 7 if rank() == last else 0
    assert tuple(received.shape) == (rows, 2)
    assert framework.values(counts).tolist() == [rows] + [0] * last


def test_large_tensors(framework):
    rows = 200_000
    own = np.repeat(ranks(), rows) + 100 * rank()
    result = framework.values(framework.one("alltoall", framework.tensor(own, "int32")))
    assert np.array_equal(result, np.repeat([100 * each + rank() for each in ranks()], rows))
