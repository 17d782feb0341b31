"""JAX without a launcher: a world of one, names inside compiled programs, missing packages."""

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import horovod.jax as hvd
from horovod.jax import order
from horovod.jax.handlers import check_version, is_native


@pytest.fixture(autouse=True)
def _world():
    hvd.init()
    yield
    hvd.shutdown()


def program_of(function, *arguments):
    return jax.jit(function).lower(*arguments).as_text()


def test_a_world_of_one_returns_its_input():
    tree = {"a": jnp.arange(3.0), "b": jnp.ones((2, 2), jnp.bfloat16)}
    for way in (lambda f: f, jax.jit):
        for collective in (hvd.allreduce, hvd.broadcast, hvd.allgather, hvd.alltoall):
            result = way(collective)(tree)
            np.testing.assert_array_equal(result["a"], tree["a"])
            assert result["b"].dtype == jnp.bfloat16
    assert jax.jit(jax.grad(lambda x: hvd.allreduce(x).sum()))(jnp.ones(2)).tolist() == [1, 1]
    assert hvd.join() == 0


def test_a_tree_is_one_call_whose_name_does_not_depend_on_the_number_of_traces():
    def step(tree, batch):
        return hvd.allreduce(tree), batch

    tree = {"a": jnp.ones(3), "b": [jnp.ones(2, jnp.int32), jnp.ones(())]}
    texts = [program_of(step, tree, jnp.ones(rows)) for rows in (1, 2)]
    names = [text[text.index("name = ") :].split('"')[1] for text in texts]
    assert [text.count("@ronde_allreduce") for text in texts] == [1, 1]
    assert names[0] == names[1]
    assert names[0].startswith("jit.allreduce.step:")


def test_each_call_site_and_iteration_has_its_own_name():
    def step(x):
        for _ in range(2):
            x = hvd.allreduce(x)
        x = hvd.allreduce(x)
        x, _ = jax.lax.scan(lambda c, _: (hvd.allreduce(c), None), x, length=2)
        return hvd.allreduce(x, name="mine")

    text = program_of(step, jnp.ones(3))
    names = {part.split('"')[1] for part in text.split("name = ")[1:]}
    assert len(names) == 5
    assert "jit.allreduce.mine" in names


def test_old_versions_are_refused():
    for fine in ("0.4.31", "0.10.2", "1.0", "0.11.0.dev20260101"):
        check_version(fine)
    with pytest.raises(
        ImportError, match=r"needs JAX 0\.4\.31 or newer, and 0\.4\.30 is installed"
    ):
        check_version("0.4.30")


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_without_jax_the_error_names_what_to_install():
    result = python("import sys; sys.modules['jax'] = None\nimport horovod.jax")
    assert result.stderr.splitlines()[-1] == (
        "ImportError: horovod.jax needs JAX, which is not installed here; "
        "install it with `pip install jax`"
    )


def test_an_incompatible_jax_is_reported_with_what_it_lacks():
    result = python(
        "import sys, jax\n"
        "sys.modules['jax.ffi'] = sys.modules['jax.extend.ffi'] = None\n"
        "import horovod.jax as hvd; hvd.init()\n"
        "print(hvd.allreduce(jax.numpy.ones(1)))\n"
        "jax.jit(hvd.allreduce)(jax.numpy.ones(1))"
    )
    assert result.stdout == "[1.]\n", result.stderr
    assert "which horovod.jax needs inside jax.jit" in result.stderr


def test_a_map_over_several_devices_of_one_rank_is_refused():
    result = python(
        "import os; os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'\n"
        "import jax, numpy; from jax.sharding import Mesh, PartitionSpec as P\n"
        "import horovod.jax as hvd; hvd.init()\n"
        "if not hasattr(jax, 'shard_map'): raise SystemExit('no shard_map')\n"
        "mesh = Mesh(numpy.array(jax.devices()), 'd')\n"
        "mapped = jax.shard_map(lambda x: hvd.allreduce(jax.lax.psum(x, 'd')), mesh=mesh,\n"
        "    in_specs=P('d'), out_specs=P(), check_vma=False)\n"
        "print(hvd.allreduce(jax.device_put(jax.numpy.ones(2), jax.NamedSharding(mesh, P('d')))))\n"
        "mapped(jax.numpy.ones(2))"
    )
    if "no shard_map" in result.stderr:
        pytest.skip("this JAX has shard_map elsewhere")
    assert result.stdout == "[1. 1.]\n", result.stderr
    assert "inside shard_map over 2 devices would be called by each" in result.stderr


def test_without_optax_everything_but_the_optimizer_works():
    result = python(
        "import sys; sys.modules['optax'] = None\n"
        "import horovod.jax as hvd; hvd.DistributedOptimizer(None)"
    )
    assert "install it with `pip install optax`" in result.stderr


class FakeGpu:
    """A device as JAX describes it."""

    def __init__(self, version):
        self.client = self
        self.platform_version = version


@pytest.mark.parametrize(
    ("version", "native"), [("PJRT C API\ncuda 13000", True), ("PJRT C API\nrocm 70000", False)]
)
def test_programs_on_nvidia_gpus_call_handlers_and_those_on_amd_gpus_call_back(
    monkeypatch, version, native
):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: [FakeGpu(version)])
    assert is_native("gpu") == native
    program = str(jax.make_jaxpr(lambda x: hvd.allreduce(x))(jnp.ones(3)))
    assert "ronde_allreduce" in program
    assert ("io_callback" in program) == (not native)


@pytest.fixture
def in_order(monkeypatch):
    if jax.__version_info__ < order.OLDEST:
        pytest.skip("in this JAX, traces cannot be told apart")
    monkeypatch.setattr(order, "is_needed", lambda: True)


def calls_of(function, *arguments):
    """The result and the operands of each call in a program."""
    found = re.findall(r"(%\w+)\S* = .*@ronde_\w+\((.*?)\)", program_of(function, *arguments))
    return [(result, operands.split(", ")) for result, operands in found]


def test_on_gpus_each_call_takes_the_token_of_the_one_before(in_order):
    def step(x, y):
        tree = hvd.allreduce({"large": x, "small": y, "empty": jnp.zeros((0, 3))})
        return tree, hvd.allreduce(y), hvd.allgather(x)

    x, y = jnp.ones(3), jnp.ones((), jnp.int32)
    first, second, third = calls_of(step, x, y)
    assert len(first[1]) == 3 and second[1][-1] == f"{first[0]}#3"
    assert len(second[1]) == 2 and third[1][-1] == f"{second[0]}#1"
    with jax.checking_leaks():
        tree, small, rows = jax.jit(lambda x, y: step(x, y))(x, y)
    assert tree["large"].tolist() == rows.tolist() == [1] * 3 and small == 1


def test_on_gpus_a_call_without_any_rows_is_in_order_too(in_order):
    def step(x):
        return hvd.allreduce(x), hvd.allgather(jnp.zeros((0, 3))), hvd.allreduce(2 * x)

    _, second, third = calls_of(step, jnp.ones(3))
    assert third[1][-1] == f"{second[0]}#1"
    assert [each.shape for each in jax.jit(step)(jnp.ones(3))] == [(3,), (0, 3), (3,)]


def test_on_gpus_derivatives_are_in_order_too(in_order):
    def loss(x):
        return hvd.allreduce(x, hvd.Sum).sum() + hvd.broadcast(x, 0).sum()

    calls = calls_of(jax.grad(loss), jnp.ones(3))
    assert [len(operands) for _, operands in calls] == [1, 2, 2, 2]
    for before, (_, operands) in zip(calls, calls[1:]):
        assert operands[-1] == f"{before[0]}#1"
    # Tokens have no gradient, and are mapped like everything else.
    for way in (jax.jit(jax.grad(loss)), jax.grad(jax.jit(loss))):
        assert way(jnp.ones(3)).tolist() == [2] * 3
    mixed = jax.jit(lambda x: hvd.allreduce(jnp.arange(2)).sum() + loss(x))
    assert jax.grad(mixed)(jnp.ones(3)).tolist() == [2] * 3
    assert jax.vmap(jax.jit(lambda x: loss(x)))(jnp.ones((2, 3))).tolist() == [6, 6]


def test_a_result_is_where_the_program_has_put_its_operand():
    result = python(
        "import os; os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'\n"
        "import jax, horovod.jax as hvd; hvd.init()\n"
        "first, second = jax.devices()\n"
        "for array in (jax.numpy.ones(2), jax.device_put(jax.numpy.ones(2), second)):\n"
        "    for result in (hvd.allreduce(array), hvd.alltoall(array, [2])[0]):\n"
        "        print(array.devices() == result.devices())\n"
    )
    assert result.stdout == "True\n" * 4, result.stderr
