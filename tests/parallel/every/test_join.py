"""Ranks that run out of data early: zeros in their place, and which rank joined last."""

import numpy as np
import pytest
from world import rank, ranks, size

pytestmark = pytest.mark.needs("join")


def turns(each, last):
    """How many batches a rank has; rank `last` has the most."""
    return 2 * ((each - last - 1) % size()) + 1


def join(framework):
    return int(framework.run(framework.hvd.join))


@pytest.mark.parametrize("last", [0, -1])
def test_joined_ranks_count_as_zeros_and_all_learn_which_was_last(framework, last):
    last %= size()
    op = framework.hvd.Sum
    for turn in range(turns(rank(), last)):
        total = sum(each + 1 for each in ranks() if turn < turns(each, last))
        tensor = framework.tensor(np.full(1000, rank() + 1))
        result = framework.one("allreduce", tensor, name=f"sum{turn}", op=op)
        assert (framework.values(result) == total).all()
        # An average is over all ranks, joined or not.
        mean = framework.values(framework.one("allreduce", tensor, name=f"mean{turn}"))
        np.testing.assert_allclose(mean, np.full(1000, total / size()), rtol=1e-6)
        group = [framework.tensor(np.full(n, rank() + 1), "int32") for n in (1, 0, 5000)]
        how = {"name": f"group{turn}", "op": op}
        for result in framework.several("grouped_allreduce", group, **how):
            assert (framework.values(result) == total).all()
    assert join(framework) == last


def test_after_a_join_everything_works_as_before(framework):
    for turn in range(3):
        for _ in range(rank() * turn):
            framework.one("allreduce", framework.tensor(np.ones(3)))
        assert join(framework) in ranks()
        # The ranks have submitted different numbers of unnamed tensors, and agree again.
        total = framework.one("allreduce", framework.tensor(np.ones(3)), op=framework.hvd.Sum)
        assert framework.values(total).tolist() == [size()] * 3
        gathered = framework.one("allgather", framework.tensor(np.ones(rank() + 1)))
        assert len(framework.values(gathered)) == sum(each + 1 for each in ranks())


@pytest.mark.parametrize("kind", ["Allgather", "Broadcast", "Alltoall", "Reducescatter"])
def test_collectives_that_zeros_cannot_replace_fail_while_a_rank_has_joined(framework, kind):
    if rank() != 0:
        tensor = framework.tensor(np.ones(size()))
        arguments = [1] if kind == "Broadcast" else []
        with pytest.raises(framework.mismatch, match=f"{kind} is not supported with Join"):
            framework.one(kind.lower(), tensor, *arguments, name=f"conflict.{kind}")
        how = {"name": f"still.{kind}", "op": framework.hvd.Sum}
        assert framework.values(framework.one("allreduce", tensor, **how))[0] == size() - 1
    assert join(framework) in ranks()
