"""Broadcast: from each rank, of every element type and shape."""

import numpy as np
import pytest
from world import everyones, mine, rank, ranks, size


@pytest.mark.over(form="broadcast", dtype="every")
def test_every_type_from_every_root(framework, form, dtype):
    arrays = everyones((7, 3))
    if dtype == "bool":
        arrays = [array > 1 for array in arrays]
    send = framework.call("broadcast", form)
    tensors = [framework.tensor(mine(arrays), dtype) for _ in ranks()]

    def from_everyone(*tensors):
        return [send(tensor, root) for root, tensor in enumerate(tensors)]

    results = framework.run(from_everyone, *tensors)
    for root, (tensor, result) in enumerate(zip(tensors, results)):
        assert framework.dtype(result) == dtype
        assert np.array_equal(framework.values(result), arrays[root])
        assert (result is tensor) == ("in place" in form)
        left = arrays[root] if "in place" in form else mine(arrays)
        assert np.array_equal(framework.values(tensor), left)


@pytest.mark.over(form="broadcast")
def test_every_shape(framework, form):
    cases = [everyones(shape) for shape in (*framework.shapes, (1_500_000,))]
    tensors = [framework.tensor(mine(arrays), "int32") for arrays in cases]
    results = framework.each("broadcast", tensors, size() - 1, form=form)
    for arrays, result in zip(cases, results):
        assert np.array_equal(framework.values(result), arrays[-1])


def test_numbers_at_the_limits_arrive_unchanged(framework):
    largest = {dtype: np.iinfo(dtype).max for dtype in framework.integers}
    tensors = [
        framework.tensor(np.full(2, most - rank(), dtype), dtype) for dtype, most in largest.items()
    ]
    for most, result in zip(largest.values(), framework.each("broadcast", tensors, 1)):
        assert framework.values(result).tolist() == [most - 1] * 2
