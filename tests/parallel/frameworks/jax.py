"""JAX, eagerly and in compiled programs. A list of arrays is a tree, and so one operation."""

import jax
import jax.numpy as jnp
import numpy as np

import horovod.jax as hvd
from frameworks.framework import Framework

_NOT_TRACED = "it is called outside of programs"
# Arrays of 64 bits; the second is what older releases call it.
_enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64


class Jax(Framework):
    name = "jax"
    hvd = hvd
    lacks = {
        "average": "Horovod has no module for JAX, and so no old programs",
        "compressed shares": "its function has no such argument",
        "gradients of Adasum": "only sums and averages have gradients, and it says so",
        "gradients of splits": "the shapes of results are not known while a program is traced",
    }
    # These travel as others of their size; sums come out right, other reductions are refused.
    carried = ("bool", "uint32", "uint64", "complex64")
    refused = {"uint32": "can be summed and multiplied only"}
    mismatch = hvd.HorovodInternalError
    invalid = ValueError
    refusal = ValueError
    takes = "takes JAX arrays"
    # One program on all ranks: the gradient is that of the sum of all losses.
    gradient_factors = {
        "allgather": lambda size: 1,
        "broadcast": lambda size: 1,
        "reducescatter": lambda size: 1,
    }

    def tensor(self, array, dtype="float32"):
        with _enable_x64(True):
            # Converted by NumPy: JAX would compile a program for each shape.
            return jax.device_put(np.array(array).astype(jnp.dtype(dtype)))

    def values(self, tensor):
        return np.array(tensor, "float32" if tensor.dtype == "bfloat16" else None)

    def dtype(self, tensor):
        return tensor.dtype.name

    def run(self, function, *tensors):
        with _enable_x64(True):
            return jax.block_until_ready(self.way(function)(*tensors))

    @staticmethod
    def way(function):
        return function

    def derivative(self, function, array, order=1):
        def total(tensor):
            return function(tensor).sum()

        slope = jax.grad(total)
        for _ in range(order - 1):
            slope = jax.grad(lambda tensor, slope=slope: slope(tensor).sum())
        return self.values(jax.block_until_ready(self.way(slope)(self.tensor(array))))


class Jit(Jax):
    name = "jax_jit"
    lacks = {
        **Jax.lacks,
        "barrier": _NOT_TRACED,
        "join": _NOT_TRACED,
        "mismatched types": "names inside of programs tell the type, so that such ranks wait",
        "objects": _NOT_TRACED,
        "ragged": "a program knows all shapes beforehand",
        "threads": "a program has an order of its own",
    }
    if jax.__version_info__ < (0, 4, 35):
        lacks["fewer rows than ranks"] = "such a program leaves out calls without results"
    # Errors of a program that runs have a class of JAX, and the same words.
    mismatch = getattr(jax.errors, "JaxRuntimeError", RuntimeError)
    invalid = (ValueError, mismatch)
    refusal = (ValueError, mismatch)

    @staticmethod
    def way(function):
        return jax.jit(function)
