"""Skips tests where JAX, which has no usable release for Python 3.9, or Spark is missing."""

from importlib.util import find_spec

collect_ignore = ["test_jax.py"] if find_spec("jax") is None else []
collect_ignore_glob = ["test_spark_*.py"] if find_spec("pyspark") is None else []
