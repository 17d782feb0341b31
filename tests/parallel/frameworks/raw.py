"""Plain NumPy arrays through `horovod.raw`: no gradients, no compression."""

from importlib.util import find_spec

import numpy as np

import horovod.raw as hvd
from frameworks.framework import FLOATS, Framework
from horovod.common.exceptions import HorovodInternalError

_OUT = ("plain", "async", "in place", "async in place")
_BARE = "the module for plain arrays has only the collectives"


class Raw(Framework):
    name = "raw"
    hvd = hvd
    lacks = {
        "average": "the deprecated argument exists only in Horovod's frameworks",
        "compressed shares": _BARE,
        "compression": _BARE,
        "gradients": _BARE,
        "mixed groups": "groups go to the engine unchanged",
        "mixed groups of allgathers": "groups go to the engine unchanged",
        "objects": _BARE,
    }
    # For NumPy, only ml_dtypes provides bfloat16.
    floats = tuple(name for name in FLOATS if name != "bfloat16" or find_spec("ml_dtypes"))
    refused = {"uint32": "uint32 is not supported", "complex64": "complex64 is not supported"}
    forms = {
        "allreduce": _OUT,
        "grouped_allreduce": _OUT,
        "broadcast": _OUT,
        "allgather": ("plain", "async"),
        "grouped_allgather": ("plain", "async"),
        "alltoall": ("plain", "async"),
        "reducescatter": ("plain", "async"),
        "grouped_reducescatter": ("plain", "async"),
    }
    mismatch = HorovodInternalError
    invalid = ValueError
    refusal = ValueError
    takes = "takes NumPy arrays and torch tensors"

    def tensor(self, array, dtype="float32"):
        if dtype == "bfloat16":
            import ml_dtypes

            return np.array(array).astype(ml_dtypes.bfloat16)
        return np.array(array).astype(dtype)

    def values(self, tensor):
        return np.array(tensor, "float32" if tensor.dtype.name == "bfloat16" else None)

    def dtype(self, tensor):
        return tensor.dtype.name

    def call(self, kind, form="plain"):
        asynchronous = "async" in form
        function = getattr(hvd, f"{kind}_async" if asynchronous else kind)

        def call(array, *arguments, **options):
            if "in place" in form:
                options["out"] = array
            result = function(array, *arguments, **options)
            result = result.wait() if asynchronous else result
            if kind != "alltoall":
                return result
            # It always returns the numbers of rows, as a list.
            received, rows = result
            return (received, np.array(rows, "int32")) if arguments else received

        return call
