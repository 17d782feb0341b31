"""Every collective on arrays and trees, eager and inside of compiled programs."""

import functools
import os
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import horovod.jax as hvd
from horovod.jax import eager, traced

RANK = int(os.environ.get("HOROVOD_RANK", "0"))
SIZE = int(os.environ.get("HOROVOD_SIZE", "1"))
WAYS = pytest.mark.parametrize("way", [lambda f: f, jax.jit], ids=["eager", "jit"])
RANKS = np.arange(SIZE)


def own(shape, dtype=jnp.float32):
    return jnp.full(shape, RANK + 1, dtype)


def everyone(dtype=np.float32):
    return (RANKS + 1).astype(dtype)


@WAYS
@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint8", "int16", "int32", "uint32", "float16", "bfloat16", "float32"],
)
def test_sums_of_every_type(way, dtype):
    result = way(lambda x: hvd.allreduce(x, hvd.Sum, name=f"sum.{dtype}"))(own((3, 2), dtype))
    assert result.dtype == jnp.dtype(dtype)
    assert result.shape == (3, 2)
    expected = True if dtype == "bool" else everyone().sum()
    assert (np.asarray(result, np.float32) == expected).all()


@WAYS
def test_reductions_and_factors(way):
    @way
    def all_of_them(x):
        return [
            hvd.allreduce(x),
            hvd.allreduce(x, hvd.Min),
            hvd.allreduce(x, hvd.Max),
            hvd.allreduce(x, hvd.Product),
            hvd.allreduce(x, hvd.Sum, prescale_factor=2.0, postscale_factor=0.5),
            hvd.allreduce(x, hvd.Adasum),
        ]

    average, least, most, product, scaled, _ = all_of_them(own((4,)))
    values = everyone()
    np.testing.assert_allclose(average, np.full(4, values.mean()), rtol=1e-6)
    np.testing.assert_allclose(least, np.full(4, values.min()))
    np.testing.assert_allclose(most, np.full(4, values.max()))
    np.testing.assert_allclose(product, np.full(4, values.prod()))
    np.testing.assert_allclose(scaled, np.full(4, values.sum()))


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


@WAYS
def test_compression_keeps_types(way):
    tree = [own((3,)), own((3,), jnp.int32)]
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        step = way(lambda tree: hvd.allreduce(tree, hvd.Sum, compression=compression))  # noqa: B023
        floats, integers = step(tree)
        assert floats.dtype == jnp.float32 and integers.dtype == jnp.int32
        assert (floats == everyone().sum()).all() and (integers == everyone().sum()).all()


@WAYS
def test_gathering_broadcasting_exchanging_and_scattering(way):
    tree = {"x": own((2, 3)), "key": own((2,), jnp.uint32)}
    gathered = way(hvd.allgather)(tree)
    np.testing.assert_array_equal(gathered["x"], np.repeat(everyone(), 2)[:, None] * np.ones(3))
    np.testing.assert_array_equal(gathered["key"], np.repeat(everyone(), 2))
    for root in range(SIZE):
        received = way(lambda tree: hvd.broadcast(tree, root))(tree)  # noqa: B023
        assert (received["x"] == root + 1).all() and (received["key"] == root + 1).all()
    numbers = jnp.arange(2 * SIZE) + 100 * RANK
    exchanged = way(hvd.alltoall)(numbers)
    expected = np.concatenate([100 * RANKS[:, None] + 2 * RANK + np.arange(2)]).reshape(-1)
    np.testing.assert_array_equal(exchanged, expected)
    rows = jnp.arange(SIZE + 1, dtype=jnp.float32)
    share = way(lambda rows: hvd.reducescatter(rows, hvd.Sum))(rows)
    np.testing.assert_array_equal(share, SIZE * np.array_split(np.arange(SIZE + 1), SIZE)[RANK])


def test_ragged_rows_outside_of_programs():
    gathered = hvd.allgather(own((RANK + 1,)))
    np.testing.assert_array_equal(gathered, np.repeat(everyone(), RANKS + 1))
    splits = [rank + 1 for rank in range(SIZE)]
    received, rows = hvd.alltoall(own((sum(splits),)), splits)
    np.testing.assert_array_equal(received, np.repeat(everyone(), RANK + 1))
    assert rows.tolist() == [RANK + 1] * SIZE
    # What a program cannot know is an error in it.
    with pytest.raises(Exception, match=r"expects \d+ rows from all ranks together"):
        jax.block_until_ready(jax.jit(hvd.allgather)(own(((RANK + 1) ** 2,))))
    with pytest.raises(ValueError, match=r"not known inside of jax\.jit"):
        jax.jit(lambda x: hvd.alltoall(x, splits))(own((sum(splits),)))


@WAYS
def test_gradients_are_those_of_the_sum_of_all_losses(way):
    weight = RANK + 1.0

    def gradient(function):
        return way(jax.grad(lambda x: (function(x) * weight).sum()))

    x = own((SIZE + 1, 2))
    total = everyone().sum()
    g = gradient(lambda x: hvd.allreduce(x, hvd.Sum))(x)
    np.testing.assert_allclose(g, np.full((SIZE + 1, 2), total), rtol=1e-6)
    g = gradient(hvd.allreduce)(x)
    np.testing.assert_allclose(g, np.full((SIZE + 1, 2), total / SIZE), rtol=1e-6)
    g = gradient(hvd.allgather)(x)
    np.testing.assert_allclose(g, np.full((SIZE + 1, 2), total), rtol=1e-6)
    g = gradient(lambda x: hvd.broadcast(x, SIZE - 1))(x)
    np.testing.assert_allclose(g, np.full((SIZE + 1, 2), total if RANK == SIZE - 1 else 0.0))
    g = gradient(hvd.alltoall)(own((SIZE, 2)))
    np.testing.assert_allclose(g, everyone()[:, None] * np.ones((SIZE, 2)))
    g = gradient(lambda x: hvd.reducescatter(x, hvd.Sum))(x)
    shares = [len(part) for part in np.array_split(np.arange(SIZE + 1), SIZE)]
    np.testing.assert_allclose(g, np.repeat(everyone(), shares)[:, None] * np.ones(2))
    mixed = {"x": x, "n": own((2,), jnp.int32)}
    g = way(jax.grad(lambda x: hvd.allreduce({**mixed, "x": x}, hvd.Sum)["x"].sum()))(x)
    np.testing.assert_allclose(g, np.full((SIZE + 1, 2), SIZE))
    with pytest.raises(NotImplementedError, match="only sums and averages"):
        gradient(lambda x: hvd.allreduce(x, hvd.Max))(x)


@WAYS
def test_a_derivative_has_a_derivative(way):
    def loss(x):
        return hvd.allreduce(x**3 * (RANK + 1), name="third_power").sum()

    second = jax.grad(lambda x: jax.grad(loss)(x).sum())
    np.testing.assert_allclose(way(second)(jnp.full(2, 2.0)), 12.0 * (RANK + 1))


def test_ragged_gathering_has_a_gradient_outside_of_programs():
    scale = jnp.arange(int((RANKS + 1).sum()), dtype=jnp.float32)
    g = jax.grad(lambda x: (hvd.allgather(x) * scale).sum())(own((RANK + 1,)))
    start = int((RANKS + 1)[:RANK].sum())
    np.testing.assert_allclose(g, SIZE * scale[start : start + RANK + 1])


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


def test_many_independent_calls_in_one_program_find_each_other():
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
        # Every batch of the last rank has another length.
        rows = 2 + (number if RANK == SIZE - 1 else 0)
        total = 2 * (SIZE - 1) + 2 + number
        np.testing.assert_allclose(step(jnp.ones(rows)), np.full(3, total))


def test_process_sets():
    some = hvd.add_process_set(range(1, SIZE))
    if some.included():
        for way in (lambda f: f, jax.jit):
            result = way(lambda x: hvd.allreduce(x, hvd.Sum, process_set=some))(own((3,)))
            assert (result == everyone()[1:].sum()).all()
            gathered = way(lambda x: hvd.allgather(x, process_set=some))(own((1,)))
            assert gathered.tolist() == everyone()[1:].tolist()
    else:
        with pytest.raises(ValueError, match="not a member"):
            hvd.allreduce(own((3,)), process_set=some)
        with pytest.raises(Exception, match="not a member"):
            jax.block_until_ready(jax.jit(lambda x: hvd.allreduce(x, process_set=some))(own((3,))))
    hvd.barrier()
    hvd.remove_process_set(some)


def test_what_cannot_be_reduced_is_refused():
    for way in (lambda f: f, jax.jit):
        with pytest.raises(Exception, match="uint32 and uint64 can be summed"):
            jax.block_until_ready(way(hvd.allreduce)(own((2,), jnp.uint32)))
        with pytest.raises(Exception, match="complex numbers can be summed"):
            jax.block_until_ready(way(lambda x: hvd.allreduce(x, hvd.Max))(own((2,)) + 0j))
        with pytest.raises(ValueError, match="does not travel"):
            way(hvd.allreduce)(jax.random.key(1))
        with pytest.raises(ValueError, match="op is 'sum'; give"):
            way(lambda x: hvd.allreduce(x, "sum"))(own((2,)))
        with pytest.raises(ValueError, match="compression is 'fp16'"):
            way(lambda x: hvd.allreduce(x, compression="fp16"))(own((2,)))
        with pytest.raises(TypeError, match="give what"):
            way(lambda x: hvd.allreduce(x, process_set=[0]))(own((2,)))
        with pytest.raises(TypeError):
            way(lambda x: hvd.broadcast(x, "0"))(own((2,)))
    with pytest.raises(ValueError, match="scalar"):
        jax.jit(hvd.allgather)(jnp.ones(()))
    for wrong in ([-1] * SIZE, [0.5] * SIZE, [[1]] * SIZE):
        with pytest.raises(ValueError, match="splits"):
            hvd.alltoall(own((SIZE,)), wrong)


def test_a_mismatch_names_both_ranks_in_a_program():
    with pytest.raises(Exception, match="Mismatched ALLREDUCE tensor shapes"):
        jax.block_until_ready(
            jax.jit(lambda x: hvd.allreduce(x, name="mismatch"))(jnp.ones(RANK + 1))
        )
    assert hvd.allreduce(jnp.ones(1), hvd.Sum) == SIZE


def test_without_a_native_handler_programs_call_back(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(traced, "_natively", traced._by_callback)
    monkeypatch.setattr(eager, "_noted", [])
    tree = {"x": own((3,)), "n": own((2,), jnp.int32)}
    program = jax.jit(lambda tree: hvd.allreduce(tree, hvd.Sum))
    with pytest.warns(UserWarning, match="arrays on gpu go through the host's memory"):
        result = jax.block_until_ready(program(tree))
    assert all((leaf == everyone().sum()).all() for leaf in jax.tree.leaves(result))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.block_until_ready(program(tree))


def test_join_lets_the_others_go_on():
    if RANK != 0:
        for _ in range(RANK):
            hvd.allreduce(jnp.ones(2), hvd.Sum, name="before.join")
    # Ranks contribute different numbers of reductions; those who have joined contribute zeros.
    assert hvd.join() in range(SIZE)
