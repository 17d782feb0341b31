"""Allreduce: every operation, element type, shape and form matches NumPy."""

import warnings

import numpy as np
import pytest
from world import adasum, everyones, mine, rank, ranks, size

REDUCTIONS = {"Sum": np.sum, "Min": np.min, "Max": np.max, "Product": np.prod}


@pytest.mark.over(form="allreduce", dtype="reduced")
def test_reductions_match_numpy(framework, form, dtype):
    reduce = framework.call("allreduce", form)
    cases = [(name, everyones(shape)) for name in REDUCTIONS for shape in framework.shapes]
    tensors = [framework.tensor(mine(arrays), dtype) for _, arrays in cases]

    def all_of_them(*tensors):
        ops = [getattr(framework.hvd, name) for name, _ in cases]
        return [reduce(tensor, op=op) for tensor, op in zip(tensors, ops)]

    results = framework.run(all_of_them, *tensors)
    for (name, arrays), tensor, result in zip(cases, tensors, results):
        assert framework.dtype(result) == dtype
        assert tuple(result.shape) == arrays[0].shape
        expected = REDUCTIONS[name](arrays, axis=0)
        assert np.array_equal(framework.values(result), expected), name
        assert (result is tensor) == ("in place" in form)
        left = expected if "in place" in form else mine(arrays)
        assert np.array_equal(framework.values(tensor), left)


@pytest.mark.over(dtype="carried")
def test_sums_of_types_without_other_reductions(framework, dtype):
    arrays = everyones((3, 5))
    result = framework.one("allreduce", framework.tensor(mine(arrays), dtype), op=framework.hvd.Sum)
    assert framework.dtype(result) == dtype
    assert np.array_equal(framework.values(result), np.sum(arrays, axis=0).astype(dtype))


@pytest.mark.over(dtype="floats")
def test_averages_of_floats(framework, dtype):
    arrays = everyones((1000,))
    result = framework.one("allreduce", framework.tensor(mine(arrays), dtype))
    # Only for a power of two is the factor exact in every element type.
    exact = size() & (size() - 1) == 0
    precision = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-7, "float64": 1e-15}[dtype]
    limits = {"rtol": 0 if exact else precision, "atol": 0}
    np.testing.assert_allclose(framework.values(result), np.mean(arrays, axis=0), **limits)


@pytest.mark.over(dtype="integers")
def test_averages_of_integers_are_truncated_toward_zero(framework, dtype):
    lowest = 0 if dtype.startswith("u") else 2
    arrays = [array - lowest for array in everyones((1000,))]
    result = framework.one("allreduce", framework.tensor(mine(arrays), dtype))
    assert np.array_equal(framework.values(result), np.trunc(np.mean(arrays, axis=0)))


@pytest.mark.over(form="allreduce", dtype="floats")
def test_factors_apply_before_and_after_the_sum(framework, form, dtype):
    arrays = everyones((100,))
    factors = {"prescale_factor": 0.5, "postscale_factor": 4.0}
    how = {"op": framework.hvd.Sum, "form": form, **factors}
    result = framework.one("allreduce", framework.tensor(mine(arrays), dtype), **how)
    assert np.array_equal(framework.values(result), 2 * np.sum(arrays, axis=0))


def test_factors_of_integers_and_of_averages(framework):
    whole = framework.tensor(np.full(5, 3), "int32")
    result = framework.one("allreduce", whole, op=framework.hvd.Sum, prescale_factor=2.0)
    assert np.array_equal(framework.values(result), np.full(5, 6 * size()))
    result = framework.one("allreduce", framework.tensor(np.ones(5)), postscale_factor=3.0)
    np.testing.assert_allclose(framework.values(result), np.full(5, 3.0), rtol=1e-6)


@pytest.mark.over(dtype="booleans")
def test_booleans_are_combined_with_or_and_and(framework, dtype):
    arrays = [array > 1 for array in everyones((1000,))]
    tensor = framework.tensor(mine(arrays), dtype)
    expected = {"Sum": np.any, "Max": np.any, "Product": np.all, "Min": np.all}
    for name, combine in expected.items():
        result = framework.one("allreduce", tensor, op=getattr(framework.hvd, name))
        assert np.array_equal(framework.values(result), combine(arrays, axis=0)), name


def test_the_result_has_the_same_bits_on_every_rank_and_every_time(framework):
    for length in (10, 5_000, 300_001):
        own = np.random.default_rng(rank()).normal(size=length).astype("float32")
        tensor = framework.tensor(own)
        results = [framework.one("allreduce", tensor, op=framework.hvd.Sum) for _ in range(2)]
        first, again = (framework.values(result).tobytes() for result in results)
        of_rank_0 = framework.values(framework.one("broadcast", results[0], 0)).tobytes()
        assert first == again == of_rank_0


def test_a_large_tensor(framework):
    tensor = framework.tensor(np.full(2_000_000, rank() + 1))
    result = framework.values(framework.one("allreduce", tensor, op=framework.hvd.Sum))
    assert (result == sum(each + 1 for each in ranks())).all()


@pytest.mark.needs("compression")
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compressed_reductions_keep_their_types(framework, compression):
    arrays = everyones((50,))
    how = {"compression": getattr(framework.hvd.Compression, compression), "op": framework.hvd.Sum}
    for dtype in ("float32", "int32"):
        tensor = framework.tensor(mine(arrays), dtype)
        (grouped,) = framework.several("grouped_allreduce", [tensor], **how)
        for result in (framework.one("allreduce", tensor, **how), grouped):
            assert framework.dtype(result) == dtype
            assert np.array_equal(framework.values(result), np.sum(arrays, axis=0))


@pytest.mark.needs("average")
@pytest.mark.over(form="allreduce")
def test_the_deprecated_argument_warns_and_excludes_the_new_one(framework, form):
    own = framework.tensor([float(rank() + 1)])
    total = float(sum(each + 1 for each in ranks()))
    for average, expected in ((False, total), (True, total / size())):
        tensor = framework.tensor(framework.values(own))
        with pytest.warns(DeprecationWarning, match="`average` has been replaced with `op`"):
            result = framework.one("allreduce", tensor, average=average, form=form)
        np.testing.assert_allclose(framework.values(result), [expected], rtol=1e-6)
    with pytest.raises(ValueError, match="The op parameter supersedes average"):
        framework.one("allreduce", own, average=True, op=framework.hvd.Sum, form=form)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        framework.one("allreduce", own, op=framework.hvd.Sum, form=form)


def directions(shape, seed=0):
    return [np.random.default_rng([seed, each]).normal(size=shape) for each in ranks()]


@pytest.mark.needs("adasum")
@pytest.mark.over(form="allreduce", dtype="floats")
def test_adasum_matches_its_definition(framework, form, dtype):
    limit = {"float16": 1e-2, "bfloat16": 6e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    cases = [
        [framework.tensor(array, dtype) for array in directions(shape)]
        for shape in framework.shapes
    ]
    expectations = [adasum([framework.values(tensor) for tensor in tensors]) for tensors in cases]
    how = {"op": framework.hvd.Adasum, "form": form}
    results = framework.each("allreduce", [mine(tensors) for tensors in cases], **how)
    for expected, result in zip(expectations, results):
        assert framework.dtype(result) == dtype
        np.testing.assert_allclose(framework.values(result), expected, rtol=limit, atol=limit)


@pytest.mark.needs("adasum")
def test_adasum_adds_orthogonal_tensors_averages_equal_ones_and_scales_once(framework):
    op = framework.hvd.Adasum
    unit = framework.tensor(np.eye(size())[rank()] * 3)
    assert np.array_equal(framework.values(framework.one("allreduce", unit, op=op)), [3] * size())
    same = framework.tensor([1.5, -2.0, 0.25])
    assert framework.values(framework.one("allreduce", same, op=op)).tolist() == [1.5, -2.0, 0.25]
    arrays = directions((50,))
    factors = {"prescale_factor": 2.0, "postscale_factor": 0.25}
    result = framework.one("allreduce", framework.tensor(mine(arrays)), op=op, **factors)
    np.testing.assert_allclose(framework.values(result), adasum(arrays) / 2, rtol=1e-5, atol=1e-6)


@pytest.mark.needs("adasum")
def test_adasum_combines_the_tensors_of_a_group_one_by_one(framework):
    groups = [directions((length,), seed) for seed, length in enumerate([3, 4000, 1, 70_000])]
    tensors = [framework.tensor(mine(arrays)) for arrays in groups]
    results = framework.several("grouped_allreduce", tensors, op=framework.hvd.Adasum)
    for tensor, result, arrays in zip(tensors, results, groups):
        alone = framework.one("allreduce", tensor, op=framework.hvd.Adasum)
        assert np.array_equal(framework.values(result), framework.values(alone))
        np.testing.assert_allclose(framework.values(result), adasum(arrays), rtol=1e-5, atol=1e-5)
