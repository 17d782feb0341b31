"""Collectives in JAX only: trees, transformations, programs that call back."""

import functools
import os
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import horovod.jax as hvd
from horovod.jax import eager, order, traced

RANK = int(os.environ.get("HOROVOD_RANK", "0"))
SIZE = int(os.environ.get("HOROVOD_SIZE", "1"))
WAYS = pytest.mark.parametrize("way", [lambda f: f, jax.jit], ids=["eager", "jit"])
RANKS = np.arange(SIZE)


def own(shape, dtype=jnp.float32):
    return jnp.full(shape, RANK + 1, dtype)


def everyone(dtype=np.float32):
    return (RANKS + 1).astype(dtype)


@WAYS
def test_a_tree_of_mixed_types_is_one_operation(way):
    tree = {
        "a": own((5,)),
        "b": [own((2, 2), jnp.bfloat16), own((), jnp.int32)],
        "empty": jnp.zeros((0, 3)),
        "c": own((3,)) + 1j * own((3,)),
    }
    result = way(lambda tree: hvd.allreduce(tree, hvd.Sum))(tree)
    assert jax.tree_util.tree_structure(result) == jax.tree_util.tree_structure(tree)
    total = everyone().sum()
    assert (result["a"] == total).all()
    assert (result["b"][0] == total).all() and result["b"][0].dtype == jnp.bfloat16
    assert result["b"][1] == total
    assert result["empty"].shape == (0, 3)
    assert (result["c"] == total * (1 + 1j)).all()
    assert hvd.grouped_allreduce([], hvd.Sum) == []


def test_the_number_of_rows_in_a_program_is_fixed():
    with pytest.raises(Exception, match=r"expects \d+ rows from all ranks together"):
        jax.block_until_ready(jax.jit(hvd.allgather)(own(((RANK + 1) ** 2,))))
    with pytest.raises(ValueError, match=r"not known inside jax\.jit"):
        jax.jit(lambda x: hvd.alltoall(x, [1] * SIZE))(own((SIZE,)))


@WAYS
def test_integers_in_a_tree_and_maxima_have_no_gradient(way):
    mixed = {"x": own((3, 2)), "n": own((2,), jnp.int32)}
    slope = way(jax.grad(lambda x: hvd.allreduce({**mixed, "x": x}, hvd.Sum)["x"].sum()))
    np.testing.assert_allclose(slope(mixed["x"]), np.full((3, 2), SIZE))
    with pytest.raises(NotImplementedError, match="only sums and averages"):
        way(jax.grad(lambda x: hvd.allreduce(x, hvd.Max).sum()))(mixed["x"])


def test_scan_vmap_shard_map_and_remat():
    def body(carry, x):
        total = hvd.allreduce(carry + x, hvd.Sum)
        return total, total

    last, every = jax.jit(lambda: jax.lax.scan(body, jnp.zeros(3), jnp.ones((4, 3))))()
    expected, value = [], 0.0
    for _ in range(4):
        value = (value + 1.0) * SIZE
        expected.append(value)
    np.testing.assert_allclose(every[:, 0], expected)
    np.testing.assert_allclose(last, np.full(3, expected[-1]))

    if hasattr(jax, "ffi"):
        batched = jax.jit(jax.vmap(lambda x: hvd.allreduce(x, hvd.Sum)))(own((4, 2)))
        np.testing.assert_allclose(batched, np.full((4, 2), everyone().sum()))

    shard_map = getattr(jax, "shard_map", None)
    if shard_map is None:
        from jax.experimental import shard_map as old

        shard_map = functools.partial(old.shard_map, check_rep=False)
    mesh = jax.sharding.Mesh(np.array(jax.local_devices()[:1]), ("i",))
    spec = jax.sharding.PartitionSpec("i")
    mapped = shard_map(
        lambda x: hvd.allreduce(x, hvd.Sum), mesh=mesh, in_specs=(spec,), out_specs=spec
    )
    np.testing.assert_allclose(jax.jit(mapped)(own((4,))), np.full(4, everyone().sum()))

    loss = jax.checkpoint(lambda x: jnp.sin(hvd.allreduce(x, hvd.Sum)).sum())
    g = jax.jit(jax.grad(loss))(own((2,)))
    np.testing.assert_allclose(g, np.full(2, SIZE * np.cos(everyone().sum())), rtol=1e-5)


def test_many_independent_calls_in_one_program_are_matched():
    @jax.jit
    def program(xs):
        return [hvd.allreduce(x * 2, hvd.Sum) for x in xs]

    # Large enough for XLA to run them in any order, and more than it has threads.
    xs = [jnp.full(100_000, (RANK + 1) * (number + 1.0)) for number in range(16)]
    for _ in range(20):
        for number, result in enumerate(program(xs)):
            assert (result == 2 * (number + 1) * everyone().sum()).all()


def test_a_rank_may_trace_more_often_than_another():
    @jax.jit
    def step(batch):
        return hvd.allreduce({"gradient": jnp.ones(3) * batch.sum()}, hvd.Sum)["gradient"]

    for number in range(3):
        # On the last rank every batch has a different length.
        rows = 2 + (number if RANK == SIZE - 1 else 0)
        total = 2 * (SIZE - 1) + 2 + number
        np.testing.assert_allclose(step(jnp.ones(rows)), np.full(3, total))


def test_unsupported_reductions_are_rejected():
    for way in (lambda f: f, jax.jit):
        with pytest.raises(Exception, match="complex numbers can be summed"):
            jax.block_until_ready(way(lambda x: hvd.allreduce(x, hvd.Max))(own((2,)) + 0j))
        with pytest.raises(ValueError, match="cannot be sent"):
            way(hvd.allreduce)(jax.random.key(1))
        with pytest.raises(ValueError, match="op is 'sum'; pass"):
            way(lambda x: hvd.allreduce(x, "sum"))(own((2,)))
        with pytest.raises(TypeError):
            way(lambda x: hvd.broadcast(x, "0"))(own((2,)))


def test_without_a_native_handler_programs_call_back(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    monkeypatch.setattr(traced, "_natively", traced._by_callback)
    monkeypatch.setattr(eager, "_noted", [])
    tree = {"x": own((3,)), "n": own((2,), jnp.int32)}
    program = jax.jit(lambda tree: hvd.allreduce(tree, hvd.Sum))
    with pytest.warns(UserWarning, match="arrays on tpu go through host memory$"):
        result = jax.block_until_ready(program(tree))
    assert all((leaf == everyone().sum()).all() for leaf in jax.tree.leaves(result))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.block_until_ready(program(tree))


def test_programs_whose_calls_are_in_order_compute_the_same(monkeypatch):
    if jax.__version_info__ < order.OLDEST:
        pytest.skip("in this JAX, traces cannot be told apart")
    monkeypatch.setattr(order, "is_needed", lambda: True)

    def loss(x):
        total = hvd.allreduce(x, hvd.Sum)
        least = hvd.allreduce(x, hvd.Average)
        _, steps = jax.lax.scan(lambda c, _: (c, hvd.allreduce(c + x, hvd.Sum).sum()), x, length=2)
        rows = hvd.allgather(x).sum() + hvd.reducescatter(jnp.ones((SIZE, 3)) * x, hvd.Sum).sum()
        return total.sum() + least.sum() + steps.sum() + rows

    value, slope = jax.jit(jax.value_and_grad(loss))(own((3,)))
    total = everyone().sum()
    np.testing.assert_allclose(value, 3 * (total + total / SIZE + 2 * 2 * total + 2 * total))
    np.testing.assert_allclose(slope, np.full(3, SIZE + 1 + 2 * 2 * SIZE + 2 * SIZE))
