"""Skips the JAX tests where JAX is missing: it has no usable release for Python 3.9."""

from importlib.util import find_spec

collect_ignore = ["test_jax.py"] if find_spec("jax") is None else []
