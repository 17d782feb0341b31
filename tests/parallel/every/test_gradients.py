"""Gradients through each collective; computing them runs collectives, too.

The loss of a rank is the sum of its results, times its own weights. The gradient of its input is
then the gradient of the sum of all losses, times a factor that depends on the framework.
"""

import numpy as np
import pytest
from world import rank, ranks, share, size

pytestmark = pytest.mark.needs("gradients")


def weights(rows, of=None):
    """A weight for each row that a rank gets, different on each rank."""
    return (np.arange(rows) + 1.0 + 100 * (rank() if of is None else of))[:, None]


def check(framework, collective, received, expected, factor=1.0):
    """Checks the gradient of a collective that returns `received` rows of two columns."""

    def loss(tensor):
        return collective(tensor) * framework.tensor(weights(received))

    rows = len(expected)
    gradient = framework.derivative(loss, np.ones((rows, 2)))
    expected = np.broadcast_to(np.asarray(expected) * factor, (rows, 2))
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def factor(framework, kind):
    return framework.gradient_factors[kind](size())


@pytest.mark.parametrize("kind", ["allreduce", "grouped_allreduce"])
@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_allreduce(framework, kind, op):
    call = framework.call(kind)
    how = {"op": getattr(framework.hvd, op), "prescale_factor": 0.5, "postscale_factor": 3.0}

    def reduce(tensor):
        return call([tensor * 2, tensor], **how)[1] if "grouped" in kind else call(tensor, **how)

    total = sum(weights(5, of) for of in ranks())
    check(framework, reduce, 5, total, 1.5 / (size() if op == "Average" else 1))


@pytest.mark.parametrize("kind", ["allgather", "grouped_allgather"])
def test_allgather(framework, kind):
    call = framework.call(kind)

    def gather(tensor):
        return call([tensor * 2, tensor])[1] if "grouped" in kind else call(tensor)

    total = sum(weights(3 * size(), of) for of in ranks())
    own = total[3 * rank() : 3 * rank() + 3]
    check(framework, gather, 3 * size(), own, factor(framework, "allgather"))


@pytest.mark.needs("ragged")
@pytest.mark.parametrize("kind", ["allgather", "grouped_allgather"])
def test_allgather_of_different_numbers_of_rows(framework, kind):
    call = framework.call(kind)

    def gather(tensor):
        return call([tensor * 2, tensor])[1] if "grouped" in kind else call(tensor)

    starts = np.cumsum([0, *(each + 1 for each in ranks())])
    total = sum(weights(starts[-1], of) for of in ranks())
    own = total[starts[rank()] : starts[rank() + 1]]
    check(framework, gather, starts[-1], own, factor(framework, "allgather"))


def test_the_gradient_of_a_broadcast_is_on_the_root(framework):
    call = framework.call("broadcast")
    expected = sum(weights(3, of) for of in ranks()) * (rank() == 1)
    scale = factor(framework, "broadcast")
    check(framework, lambda tensor: call(tensor, 1), 3, expected, scale)


def test_alltoall(framework):
    call = framework.call("alltoall")
    expected = [weights(2 * size(), of)[2 * rank() : 2 * rank() + 2] for of in ranks()]
    check(framework, call, 2 * size(), np.concatenate(expected))


@pytest.mark.needs("gradients of splits")
def test_alltoall_of_shares_of_different_sizes(framework):
    call = framework.call("alltoall")
    splits = [[(source + 2 * target) % 3 for target in ranks()] for source in ranks()]
    expected = [np.zeros((0, 1))]
    for target in ranks():
        start = sum(splits[source][target] for source in range(rank()))
        rows = weights(start + splits[rank()][target], target)
        expected.append(rows[start:])
    # Rows that are not sent have a zero gradient.
    expected.append(np.zeros((2, 1)))
    received = sum(rows[rank()] for rows in splits)

    def exchange(tensor):
        return call(tensor, splits[rank()])[0]

    check(framework, exchange, received, np.concatenate(expected))


@pytest.mark.parametrize("kind", ["reducescatter", "grouped_reducescatter"])
@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_reducescatter(framework, kind, op):
    call = framework.call(kind)
    how = {"op": getattr(framework.hvd, op), "prescale_factor": 0.5, "postscale_factor": 3.0}

    def scatter(tensor):
        return call([tensor * 2, tensor], **how)[1] if "grouped" in kind else call(tensor, **how)

    rows = 2 * size() + 1
    lengths = [len(share(np.zeros(rows), of)) for of in ranks()]
    expected = np.concatenate([weights(length, of) for of, length in enumerate(lengths)])
    scale = 1.5 * factor(framework, "reducescatter") / (size() if op == "Average" else 1)
    check(framework, scatter, lengths[rank()], expected, scale)


@pytest.mark.needs("adasum", "gradients of Adasum")
def test_adasum_combines_gradients_too(framework):
    call = framework.call("allreduce")
    unit = np.eye(size())[rank()]

    def loss(tensor):
        return call(tensor, op=framework.hvd.Adasum) * framework.tensor(unit * 3)

    # Orthogonal gradients are added.
    gradient = framework.derivative(loss, np.zeros(size()))
    np.testing.assert_allclose(gradient, np.full(size(), 3.0))


@pytest.mark.parametrize("kind", ["allreduce", "alltoall"])
def test_second_derivatives(framework, kind):
    call = framework.call(kind)

    second = framework.derivative(lambda tensor: call(tensor**3), np.full(size(), 3.0), order=2)
    np.testing.assert_allclose(second, np.full(size(), 18.0))
