"""Reducescatter: each rank gets its rows of the sum; the first ranks may get one more."""

import numpy as np
import pytest
from world import everyones, mine, share, size


@pytest.mark.over(form="reducescatter", dtype="reduced")
def test_shares_of_sums_of_every_type(framework, form, dtype):
    few = (0, 1) if framework.has(["empty", "fewer rows than ranks"]) else ()
    lengths = (*few, size(), 4 * size() - 1, 1003)
    rows = ((), (3,), (2, 2))
    cases = [everyones((length, *row)) for length in lengths for row in rows]
    tensors = [framework.tensor(mine(arrays), dtype) for arrays in cases]
    parts = framework.each("reducescatter", tensors, op=framework.hvd.Sum, form=form)
    for arrays, tensor, part in zip(cases, tensors, parts):
        expected = share(np.sum(arrays, axis=0))
        assert framework.dtype(part) == dtype
        assert tuple(part.shape) == expected.shape
        assert np.array_equal(framework.values(part), expected)
        assert np.array_equal(framework.values(tensor), mine(arrays))


@pytest.mark.over(form="reducescatter")
def test_shares_are_averaged_by_default(framework, form):
    arrays = everyones((4 * size() + 1, 3))
    part = framework.one("reducescatter", framework.tensor(mine(arrays)), form=form)
    expected = share(np.mean(arrays, axis=0))
    np.testing.assert_allclose(framework.values(part), expected, rtol=1e-6)
    whole = [array - 2 for array in arrays]
    part = framework.one("reducescatter", framework.tensor(mine(whole), "int32"), form=form)
    assert np.array_equal(framework.values(part), share(np.trunc(np.mean(whole, axis=0))))


@pytest.mark.over(form="reducescatter", dtype="floats")
def test_factors_apply_before_and_after_the_sum(framework, form, dtype):
    arrays = everyones((2 * size() + 1,))
    factors = {"prescale_factor": 0.5, "postscale_factor": 4.0}
    how = {"op": framework.hvd.Sum, "form": form, **factors}
    part = framework.one("reducescatter", framework.tensor(mine(arrays), dtype), **how)
    assert np.array_equal(framework.values(part), 2 * share(np.sum(arrays, axis=0)))


@pytest.mark.needs("compressed shares")
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compressed_shares_keep_their_types(framework, compression):
    arrays = everyones((2 * size() + 1,))
    how = {"compression": getattr(framework.hvd.Compression, compression), "op": framework.hvd.Sum}
    tensor = framework.tensor(mine(arrays))
    (grouped,) = framework.several("grouped_reducescatter", [tensor], **how)
    for part in (framework.one("reducescatter", tensor, **how), grouped):
        assert framework.dtype(part) == "float32"
        assert np.array_equal(framework.values(part), share(np.sum(arrays, axis=0)))


def test_a_large_tensor(framework):
    arrays = everyones((1_000_001,))
    tensor = framework.tensor(mine(arrays))
    part = framework.one("reducescatter", tensor, op=framework.hvd.Sum)
    assert np.array_equal(framework.values(part), share(np.sum(arrays, axis=0)))
