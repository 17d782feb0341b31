"""JAX is not everywhere: it has no release that we can use for Python 3.9."""

from importlib.util import find_spec

collect_ignore = ["test_jax.py"] if find_spec("jax") is None else []
