"""Grouped collectives: like single ones, in the order of the tensors, with mixed element types."""

import numpy as np
import pytest
from world import everyones, mine, rank, ranks, share, size


@pytest.mark.over(form="grouped_allreduce")
def test_groups_of_allreduces(framework, form):
    groups = [everyones((n + 1,), n) for n in range(20)]
    tensors = [framework.tensor(mine(arrays)) for arrays in groups]
    how = {"op": framework.hvd.Sum, "prescale_factor": 2.0, "form": form}
    results = framework.several("grouped_allreduce", tensors, **how)
    assert len(results) == len(groups)
    for result, tensor, arrays in zip(results, tensors, groups):
        assert np.array_equal(framework.values(result), 2 * np.sum(arrays, axis=0))
        assert (result is tensor) == ("in place" in form)


def test_groups_are_averaged_by_default(framework):
    groups = [everyones((n + 1,), n) for n in range(3)]
    tensors = [framework.tensor(mine(arrays)) for arrays in groups]
    for result, arrays in zip(framework.several("grouped_allreduce", tensors), groups):
        np.testing.assert_allclose(framework.values(result), np.mean(arrays, axis=0), rtol=1e-6)


@pytest.mark.needs("ragged")
@pytest.mark.over(form="grouped_allgather")
def test_groups_of_allgathers(framework, form):
    lengths = range(1, 4) if not framework.has(["empty"]) else range(5)
    groups = [[np.full((1 + each * factor % 3, 2), each) for each in ranks()] for factor in lengths]
    tensors = [framework.tensor(mine(arrays)) for arrays in groups]
    results = framework.several("grouped_allgather", tensors, form=form)
    assert len(results) == len(groups)
    for result, arrays in zip(results, groups):
        assert np.array_equal(framework.values(result), np.concatenate(arrays))


@pytest.mark.over(form="grouped_reducescatter")
def test_groups_of_reducescatters(framework, form):
    lengths = [size(), 7, 4 * size() + 1, 1000]
    groups = [everyones((length, 2), length) for length in lengths]
    tensors = [framework.tensor(mine(arrays)) for arrays in groups]
    how = {"op": framework.hvd.Sum, "prescale_factor": 2.0, "form": form}
    parts = framework.several("grouped_reducescatter", tensors, **how)
    assert len(parts) == len(groups)
    for part, arrays in zip(parts, groups):
        assert np.array_equal(framework.values(part), 2 * share(np.sum(arrays, axis=0)))


TYPES = ("float32", "int64", "float32", "float16")


def mixed(framework):
    return [framework.tensor(np.full((size() + 1, 2), rank() + 1), dtype) for dtype in TYPES]


def check(framework, results, expected):
    assert [framework.dtype(result) for result in results] == list(TYPES)
    for result in results:
        assert np.array_equal(framework.values(result), expected)


@pytest.mark.needs("mixed groups")
@pytest.mark.over(form="grouped_allreduce")
def test_a_group_of_allreduces_may_mix_types(framework, form):
    how = {"op": framework.hvd.Sum, "form": form}
    results = framework.several("grouped_allreduce", mixed(framework), **how)
    check(framework, results, np.full((size() + 1, 2), sum(each + 1 for each in ranks())))


@pytest.mark.needs("mixed groups")
@pytest.mark.over(form="grouped_reducescatter")
def test_a_group_of_reducescatters_may_mix_types(framework, form):
    how = {"op": framework.hvd.Sum, "form": form}
    results = framework.several("grouped_reducescatter", mixed(framework), **how)
    total = np.full((size() + 1, 2), sum(each + 1 for each in ranks()))
    check(framework, results, share(total))


@pytest.mark.needs("mixed groups of allgathers")
@pytest.mark.over(form="grouped_allgather")
def test_a_group_of_allgathers_may_mix_types(framework, form):
    results = framework.several("grouped_allgather", mixed(framework), form=form)
    rows = np.repeat([each + 1 for each in ranks()], size() + 1)
    check(framework, results, np.stack([rows, rows], axis=1))


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "reducescatter"])
def test_an_empty_group_has_no_results(framework, kind):
    assert list(framework.call(f"grouped_{kind}")([])) == []
