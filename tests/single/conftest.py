"""JAX has no release that we can use for Python 3.9."""

import sys

collect_ignore = ["test_jax.py"] if sys.version_info < (3, 10) else []
