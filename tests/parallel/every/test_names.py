"""Names: ranks match operations by name, in any order; unnamed ones by order."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from world import rank, size


def test_a_name_may_be_reused_with_another_shape(framework):
    for length in (3, 3, 5, 5, 3):
        tensor = framework.tensor(np.ones(length))
        result = framework.one("allreduce", tensor, name="again", op=framework.hvd.Sum)
        assert framework.values(result).tolist() == [size()] * length


def test_several_collectives_may_share_a_name(framework):
    tensor = framework.tensor(np.full(size(), rank()))
    for _ in range(2):
        assert len(framework.values(framework.one("allgather", tensor, name="same"))) == size() ** 2
        assert framework.values(framework.one("broadcast", tensor, 1, name="same"))[0] == 1
        assert framework.values(framework.one("alltoall", tensor, name="same")).tolist() == list(
            range(size())
        )
        mean = framework.values(framework.one("reducescatter", tensor, name="same"))
        np.testing.assert_allclose(mean, [(size() - 1) / 2], rtol=1e-6)


@pytest.mark.needs("threads")
def test_threads_may_submit_in_any_order(framework):
    numbers = list(range(8))
    random.Random(rank()).shuffle(numbers)

    def reduce(number):
        tensor = framework.tensor(np.full(number * 50 + 1, number))
        how = {"name": f"t{number}", "op": framework.hvd.Sum}
        return framework.values(framework.one("allreduce", tensor, **how))

    with ThreadPoolExecutor(len(numbers)) as pool:
        for number, result in zip(numbers, pool.map(reduce, numbers)):
            assert result.tolist() == [number * size()] * (number * 50 + 1)


@pytest.mark.needs("barrier", "threads")
def test_a_name_in_flight_cannot_be_used_again(framework):
    def reduce(_=None):
        tensor = framework.tensor(np.ones(3))
        try:
            how = {"name": "twice", "op": framework.hvd.Sum}
            return framework.values(framework.one("allreduce", tensor, **how)).tolist()
        except framework.invalid as error:
            # Only now do the other ranks take part, so the first operation is still in flight.
            framework.hvd.barrier()
            return str(error)

    if rank() == 0:
        with ThreadPoolExecutor(2) as pool:
            results = sorted(pool.map(reduce, range(2)), key=lambda each: isinstance(each, list))
        assert "with the same name as another tensor" in results[0]
    else:
        framework.hvd.barrier()
        results = [reduce()]
    assert results[-1] == [size()] * 3
