"""Rules about collectives that all frameworks share."""

from __future__ import annotations

import pytest

from horovod.common.calls import Call, by_type, equal_splits, shares


class Members:
    """Enough of a process set: three ranks, of which this one is the second."""

    def size(self) -> int:
        return 3

    def rank(self) -> int:
        return 1


def call(kind: str) -> Call:
    return Call(kind, "x", process_set=Members())


def test_places_are_grouped_by_type_in_the_order_of_their_first_ones():
    assert by_type(["f", "i", "f", "b", "i"]) == [[0, 2], [1, 4], [3]]
    assert by_type([]) == []


def test_rows_are_split_evenly_or_not_at_all():
    assert equal_splits(6, 3) == [2, 2, 2]
    with pytest.raises(ValueError, match=r"not an even multiple .* 7 rows for 3 workers"):
        equal_splits(7, 3)


def test_the_first_ranks_get_what_is_left_over():
    assert shares(8, 3) == [3, 3, 2]
    assert shares(0, 3) == [0, 0, 0]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("allreduce", [8, 2]),
        ("broadcast", [8, 2]),
        ("allgather", [24, 2]),
        ("reducescatter", [3, 2]),
    ],
)
def test_the_shape_of_a_result_follows_from_the_collective(kind: str, shape: list[int]):
    assert call(kind).result([8, 2]) == shape


def test_what_is_gathered_has_rows():
    assert call("alltoall").result([9]) == [9]
    assert call("allreduce").result([]) == []
    with pytest.raises(ValueError, match="needs a first dimension"):
        call("allgather").result([])
