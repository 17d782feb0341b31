"""Allgather: rows of every element type, any number from each rank."""

import numpy as np
import pytest
from world import everyones, mine, rank, ranks, size


@pytest.mark.over(form="allgather", dtype="every")
def test_rows_of_every_type(framework, form, dtype):
    cases = [everyones((4, *row)) for row in ((), (3,), (2, 2))]
    tensors = [framework.tensor(mine(arrays), dtype) for arrays in cases]
    for arrays, result in zip(cases, framework.each("allgather", tensors, form=form)):
        assert framework.dtype(result) == dtype
        expected = np.concatenate(arrays)
        expected = expected.astype(bool) if dtype == "bool" else expected
        assert np.array_equal(framework.values(result), expected)


@pytest.mark.needs("ragged")
@pytest.mark.over(form="allgather")
def test_ranks_may_have_different_numbers_of_rows(framework, form):
    fewest = 0 if framework.has(["empty"]) else 1
    for turn in range(size()):
        lengths = [fewest + (each + turn) % size() * 3 for each in ranks()]
        arrays = [np.full((length, 2), each) for each, length in enumerate(lengths)]
        result = framework.one("allgather", framework.tensor(mine(arrays)), form=form)
        assert np.array_equal(framework.values(result), np.concatenate(arrays))


@pytest.mark.needs("empty")
def test_gathering_nothing(framework):
    result = framework.one("allgather", framework.tensor(np.ones((0, 3)), "float16"))
    assert tuple(result.shape) == (0, 3)
    assert framework.dtype(result) == "float16"


def test_gathered_tensors_own_their_memory(framework):
    tensors = [framework.tensor(np.full(1000, n + rank())) for n in range(20)]
    for number, result in enumerate(framework.each("allgather", tensors)):
        expected = np.repeat([number + each for each in ranks()], 1000)
        assert np.array_equal(framework.values(result), expected)
