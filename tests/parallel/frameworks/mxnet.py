"""MXNet: its engine runs reductions and broadcasts, in and out of place."""

import mxnet as mx
import numpy as np

import horovod.mxnet as hvd
from frameworks.framework import Framework

_SUFFIXES = {"plain": "", "in place": "_"}
_OLD_ARRAYS = "without NumPy's rules for shapes, a dimension of zero means unknown"


class MXNet(Framework):
    name = "mxnet"
    hvd = hvd
    lacks = {
        "adasum": "Horovod rejects it for MXNet",
        "barrier": "Horovod has none for MXNet",
        "compressed shares": "Horovod has it in the optimizer only",
        "compression": "Horovod has it in the optimizer only",
        "empty": _OLD_ARRAYS,
        "gradients": "Horovod has none for MXNet",
        "join": "Horovod has none for MXNet",
        "scalars": _OLD_ARRAYS,
        "threads": "MXNet's API does not support it",
    }
    integers = ("uint8", "int8", "int32", "int64")
    floats = ("float16", "float32", "float64")
    carried = ()
    forms = {
        "allreduce": ("plain", "in place"),
        "grouped_allreduce": ("plain", "in place"),
        "broadcast": ("plain", "in place"),
    }
    # MXNet's own class for everything; a call that fails at once also raises the classes of the
    # others.
    mismatch = mx.base.MXNetError
    invalid = mx.base.MXNetError
    refusal = mx.base.MXNetError
    takes = "not an MXNet array"

    def seed(self):
        mx.random.seed(1)

    def tensor(self, array, dtype="float32"):
        return mx.nd.array(np.array(array), dtype=dtype)

    def values(self, tensor):
        return tensor.asnumpy()

    def dtype(self, tensor):
        return np.dtype(tensor.dtype).name

    def call(self, kind, form="plain"):
        return getattr(hvd, kind + _SUFFIXES[form])

    def run(self, function, *tensors):
        result = function(*tensors)
        for each in result if isinstance(result, (list, tuple)) else [result]:
            each.wait_to_read()
        return result
