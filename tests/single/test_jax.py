"""JAX without a launcher: a world of one, names inside compiled programs, missing packages."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import horovod.jax as hvd
from horovod.jax.handlers import check_version


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
