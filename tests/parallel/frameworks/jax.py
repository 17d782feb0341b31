"""JAX, eagerly and in compiled programs. A list of arrays is a tree, so it is one operation."""

import jax
import jax.numpy as jnp
import numpy as np

import horovod.jax as hvd
from frameworks.framework import Framework

_NOT_TRACED = "it is called outside programs"
# Allows 64-bit arrays; older releases have it in `jax.experimental`.
_enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64


class Jax(Framework):
    name = "jax"
    hvd = hvd
    lacks = {
        "average": "Horovod has no module for JAX, so there are no old programs",
        "compressed shares": "its function has no such argument",
        "gradients of Adasum": "only sums and averages have gradients; others raise an error",
        "gradients of splits": "the shapes of results are not known while a program is traced",
    }
    # These are sent as other types of the same size; sums are correct, other reductions are
    # rejected.
    carried = ("bool", "uint32", "uint64", "complex64")
    refused = {"uint32": "can be summed and multiplied only"}
    mismatch = hvd.HorovodInternalError
    invalid = ValueError
    refusal = ValueError
    takes = "takes JAX arrays"
    # All ranks form one program: gradients are those of the sum of all losses.
    gradient_factors = {
        "allgather": lambda size: 1,
        "broadcast": lambda size: 1,
        "reducescatter": lambda size: 1,
    }

    def tensor(self, array, dtype="float32"):
        with _enable_x64(True):
            # Convert with NumPy: JAX would compile a program for each shape.
            return jax.device_put(np.array(array).astype(jnp.dtype(dtype)))

    def values(self, tensor):
        return np.array(tensor, "float32" if tensor.dtype == "bfloat16" else None)

    def dtype(self, tensor):
        return tensor.dtype.name

    def run(self, function, *tensors):
        with _enable_x64(True):
            return jax.block_until_ready(self.wrap(function)(*tensors))

    @staticmethod
    def wrap(function):
        return function

    def derivative(self, function, array, order=1):
        def total(tensor):
            return function(tensor).sum()

        slope = jax.grad(total)
        for _ in range(order - 1):
            slope = jax.grad(lambda tensor, slope=slope: slope(tensor).sum())
        return self.values(jax.block_until_ready(self.wrap(slope)(self.tensor(array))))


class Jit(Jax):
    name = "jax_jit"
    lacks = {
        **Jax.lacks,
        "barrier": _NOT_TRACED,
        "join": _NOT_TRACED,
        "objects": _NOT_TRACED,
        "ragged": "the shapes in a program are fixed",
        "threads": "a program has its own order",
    }
    if jax.__version_info__ < (0, 4, 35):
        lacks["fewer rows than ranks"] = "such a program drops calls without results"
    # Errors in a running program have JAX's class, and the same text.
    mismatch = getattr(jax.errors, "JaxRuntimeError", RuntimeError)
    invalid = (ValueError, mismatch)
    refusal = (ValueError, mismatch)

    @staticmethod
    def wrap(function):
        return jax.jit(function)
