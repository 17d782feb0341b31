"""PyTorch: every collective, in every form."""

import numpy as np
import torch

import horovod.torch as hvd
from frameworks.framework import INTEGERS, Framework

_PLACE = ("plain", "async", "in place", "async in place")
_SUFFIXES = {"plain": "", "async": "_async", "in place": "_", "async in place": "_async_"}


class Torch(Framework):
    name = "torch"
    hvd = hvd
    integers = tuple(name for name in INTEGERS if hasattr(torch, name))
    refused = {"complex64": "is not supported"}
    forms = {
        "allreduce": _PLACE,
        "grouped_allreduce": _PLACE,
        "broadcast": _PLACE,
        "allgather": ("plain", "async"),
        "grouped_allgather": ("plain", "async"),
        "alltoall": ("plain", "async"),
        "reducescatter": ("plain", "async"),
        "grouped_reducescatter": ("plain", "async"),
    }
    mismatch = hvd.HorovodInternalError
    invalid = ValueError
    refusal = ValueError
    takes = "takes torch tensors"
    # As in Horovod, gradients of gathered and of broadcast tensors are averaged.
    gradient_factors = {
        "allgather": lambda size: 1 / size,
        "broadcast": lambda size: 1 / size,
        "reducescatter": lambda size: size,
    }

    def start(self):
        torch.set_num_threads(1)

    def seed(self):
        torch.manual_seed(1)

    def tensor(self, array, dtype="float32"):
        return torch.as_tensor(np.array(array)).to(getattr(torch, dtype))

    def values(self, tensor):
        tensor = tensor.detach()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy().copy()

    def dtype(self, tensor):
        return str(tensor.dtype).removeprefix("torch.")

    def call(self, kind, form="plain"):
        function = getattr(hvd, kind + _SUFFIXES[form])
        if "async" not in form:
            return function
        return lambda *arguments, **options: hvd.synchronize(function(*arguments, **options))

    def derivative(self, function, array, order=1):
        tensor = self.tensor(array).requires_grad_()
        result = function(tensor)
        for left in reversed(range(order)):
            (result,) = torch.autograd.grad(result.sum(), tensor, create_graph=left > 0)
        return self.values(result)
