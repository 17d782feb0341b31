"""Errors: every rank gets one that says what differs, and the world continues."""

import numpy as np
import pytest
from world import differ, rank, size

COLLECTIVES = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")


def ones(framework, shape, dtype="float32"):
    return framework.tensor(np.ones(shape), dtype)


def check_world(framework):
    total = framework.one("allreduce", ones(framework, 1), op=framework.hvd.Sum)
    assert framework.values(total).tolist() == [size()]


# By what differs: the error text, the collective, and this rank's shape and further arguments.
MISMATCHES = {
    "shape to reduce": ("Mismatched ALLREDUCE tensor shapes", "allreduce", lambda: [differ(3, 4)]),
    "dimensions to reduce": (
        "Mismatched ALLREDUCE tensor shapes",
        "allreduce",
        lambda: [differ((2, 3), (3, 2))],
    ),
    "factor": (
        "Mismatched prescale and/or postscale factors",
        "allreduce",
        lambda: [3, {"prescale_factor": differ(1.0, 2.0)}],
    ),
    "root": ("Mismatched BROADCAST root ranks", "broadcast", lambda: [3, differ(0, 1)]),
    "shape to send": (
        "Mismatched BROADCAST tensor shapes",
        "broadcast",
        lambda: [differ((2, 3), (3, 2)), 0],
    ),
    "columns to gather": (
        "Mismatched ALLGATHER tensor shapes: .*dimension 1 equal to",
        "allgather",
        lambda: [differ((2, 3), (2, 4))],
    ),
    "dimensions to gather": (
        "Mismatched ALLGATHER tensor shapes: .*tensor of rank",
        "allgather",
        lambda: [differ((2, 3), (2, 3, 1))],
    ),
    "columns to exchange": (
        "Mismatched ALLTOALL tensor shapes",
        "alltoall",
        lambda: [(size(), differ(2, 3))],
    ),
    "shape to scatter": (
        "Mismatched REDUCESCATTER tensor shapes",
        "reducescatter",
        lambda: [differ(8, 9)],
    ),
    "factor of shares": (
        "Mismatched prescale and/or postscale factors",
        "reducescatter",
        lambda: [8, {"postscale_factor": differ(1.0, 2.0)}],
    ),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_a_mismatch_fails_on_every_rank(framework, case):
    text, kind, arguments = MISMATCHES[case]
    shape, *others = arguments()
    options = others.pop() if others and isinstance(others[-1], dict) else {}
    for _ in range(2):
        with pytest.raises(framework.mismatch, match=text):
            framework.one(kind, ones(framework, shape), *others, name="mismatch", **options)
        check_world(framework)


def test_a_mismatch_names_what_the_ranks_sent(framework):
    with pytest.raises(framework.mismatch) as error:
        framework.one("allreduce", ones(framework, differ(3, 4)), name="both")
    text = str(error.value)
    assert "shape [3]" in text and "shape [4]" in text
    assert "rank 0" in text and "both" in text


@pytest.mark.parametrize("other", ["Max", "Min", "Product"])
def test_different_reductions_fail_on_every_rank(framework, other):
    op = getattr(framework.hvd, differ("Sum", other))
    with pytest.raises(framework.mismatch, match="Mismatched reduction operation"):
        framework.one("allreduce", ones(framework, 3), name="reductions", op=op)
    check_world(framework)


@pytest.mark.needs("adasum")
def test_adasum_on_one_rank_only_fails_on_every_rank(framework):
    op = getattr(framework.hvd, differ("Adasum", "Sum"))
    with pytest.raises(framework.mismatch, match=r"Mismatched operations: .*ADASUM"):
        framework.one("allreduce", ones(framework, 3), name="adasum", op=op)
    check_world(framework)


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_different_types_fail_on_every_rank(framework, kind):
    arguments = [0] if kind == "broadcast" else []
    dtype = differ("float32", "int32")
    with pytest.raises(framework.mismatch, match="Mismatched data types: One rank had type"):
        framework.one(kind, ones(framework, size(), dtype), *arguments, name="types")
    check_world(framework)


@pytest.mark.parametrize("kind", ["allreduce", "allgather"])
def test_different_groups_fail_on_every_rank(framework, kind):
    tensors = [ones(framework, 2) for _ in range(differ(2, 3))]
    with pytest.raises(framework.mismatch, match=f"Mismatched {kind.upper()} group sizes"):
        framework.several(f"grouped_{kind}", tensors, name="groups")
    tensors = [ones(framework, 2), ones(framework, (2, differ(2, 3)))]
    with pytest.raises(framework.mismatch, match=f"Mismatched {kind.upper()} tensor shapes"):
        framework.several(f"grouped_{kind}", tensors, name="groups")
    check_world(framework)


# Mistakes that each rank detects on its own.
MISTAKES = {
    "root that does not exist": ("invalid root rank", "broadcast", lambda: [2, size()]),
    "negative root": ("invalid root rank -1", "broadcast", lambda: [2, -1]),
    "rows that do not divide": (
        "splits not provided, but first dimension of tensor is not an even multiple",
        "alltoall",
        lambda: [size() + 1],
    ),
}
SPLITS = {
    "too many": ("Number of entries in splits", lambda: [1] * (size() + 1)),
    "too few": ("Number of entries in splits", lambda: [1] * (size() - 1)),
    "more than there are": ("Sum of splits entries is greater", lambda: [2] * size()),
    "negative": ("negative", lambda: [-1] * size()),
    "fractions": ("splits to contain 32-bit integer elements", lambda: [0.5] * size()),
    "two dimensions": ("1D splits tensor", lambda: [[1]] * size()),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_rejected(framework, case):
    text, kind, arguments = MISTAKES[case]
    shape, *others = arguments()
    with pytest.raises(framework.invalid, match=text):
        framework.one(kind, ones(framework, shape), *others)
    check_world(framework)


def test_a_reduction_that_does_not_exist_is_rejected(framework):
    """The error is the same in every framework, because it is raised before the framework's own."""
    with pytest.raises(ValueError, match=r"op is 17; pass hvd\.Average"):
        framework.one("allreduce", ones(framework, 2), op=17)
    check_world(framework)


@pytest.mark.needs("ragged")
@pytest.mark.parametrize("case", SPLITS)
def test_invalid_splits_are_rejected(framework, case):
    text, splits = SPLITS[case]
    with pytest.raises(framework.invalid, match=text):
        framework.one("alltoall", ones(framework, size()), splits())
    check_world(framework)


@pytest.mark.needs("ragged")
def test_a_tensor_of_fractional_splits_is_rejected(framework):
    splits = ones(framework, size())
    with pytest.raises(framework.invalid, match="splits to contain 32-bit integer elements"):
        framework.one("alltoall", ones(framework, size()), splits)
    check_world(framework)


@pytest.mark.needs("scalars")
@pytest.mark.parametrize("kind", ["allgather", "alltoall", "reducescatter"])
def test_a_scalar_has_no_rows(framework, kind):
    with pytest.raises(Exception, match=r"rank-zero|scalar") as error:
        framework.one(kind, ones(framework, ()))
    # Some frameworks detect it locally, some when all ranks have submitted.
    assert isinstance(error.value, (framework.mismatch, framework.invalid))
    check_world(framework)


@pytest.mark.over(dtype="refused")
def test_an_unsupported_element_type_is_named(framework, dtype):
    with pytest.raises(framework.refusal, match=framework.refused[dtype]):
        framework.one("allreduce", ones(framework, 2, dtype))
    check_world(framework)


@pytest.mark.parametrize("op", ["Min", "Max", "Product", "Adasum"])
@pytest.mark.parametrize("kind", ["reducescatter", "grouped_reducescatter"])
def test_reducescatter_supports_only_sums_and_averages(framework, kind, op):
    tensor = ones(framework, size())
    argument = [tensor] if "grouped" in kind else tensor
    for known in (NotImplementedError, RuntimeError, ValueError):
        with pytest.raises(known, match="only supports AVERAGE and SUM"):
            framework.call(kind)(argument, op=getattr(framework.hvd, op))
    check_world(framework)


@pytest.mark.needs("adasum")
def test_adasum_supports_only_floats(framework):
    with pytest.raises(framework.invalid, match="floating-point tensors only"):
        framework.one("allreduce", ones(framework, 3, "int32"), op=framework.hvd.Adasum)
    check_world(framework)


@pytest.mark.needs("compression")
@pytest.mark.parametrize("kind", ["allreduce", "grouped_allreduce"])
def test_a_string_is_not_a_compression(framework, kind):
    tensor = ones(framework, 3)
    with pytest.raises(ValueError, match="compression is 'fp16'; pass Compression"):
        framework.call(kind)([tensor] if "grouped" in kind else tensor, compression="fp16")
    check_world(framework)


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "alltoall", "reducescatter"])
def test_an_arbitrary_object_is_not_a_tensor(framework, kind):
    with pytest.raises(TypeError, match=framework.takes):
        framework.call(kind)(object())
    check_world(framework)


@pytest.mark.parametrize("wrong", [None, 0, [0, 1]], ids=str)
@pytest.mark.parametrize("kind", ["allreduce", "allgather", "alltoall", "reducescatter"])
def test_other_objects_are_not_process_sets(framework, kind, wrong):
    with pytest.raises(TypeError, match="pass what"):
        framework.one(kind, ones(framework, size()), process_set=wrong)
    check_world(framework)


def test_any_rank_may_be_the_one_that_differs(framework):
    odd = size() - 1
    with pytest.raises(framework.mismatch, match="Mismatched ALLREDUCE tensor shapes"):
        framework.one("allreduce", ones(framework, 4 if rank() == odd else 3), name="last")
    check_world(framework)
