"""The frameworks under test: how to make and read their tensors, and how they differ.

Tests in `every` are written once, against `Framework`. Where a framework differs by specification,
its class declares that as data, and tests that it cannot run are not collected for it.
"""

import importlib

from frameworks.framework import FEATURES, Framework

__all__ = ["FEATURES", "Framework", "load"]

# A framework that compiles functions is tested both ways, because they run different code.
_CLASSES = {
    "torch": ("torch", "Torch"),
    "raw": ("raw", "Raw"),
    "tensorflow": ("tensorflow", "TensorFlow"),
    "tensorflow_function": ("tensorflow", "Function"),
    "jax": ("jax", "Jax"),
    "jax_jit": ("jax", "Jit"),
    "mxnet": ("mxnet", "MXNet"),
}


def load(name):
    """Imports and returns the framework with this name."""
    module, kind = _CLASSES[name]
    framework = getattr(importlib.import_module(f"frameworks.{module}"), kind)()
    assert set(framework.lacks) <= set(FEATURES), framework.lacks
    return framework
