"""PyTorch: every collective, in every form; on the CPU, or on a GPU that ranks may share."""

import os

import numpy as np
import torch

import horovod.torch as hvd
from frameworks.framework import INTEGERS, Framework

DEVICE = "cuda" if os.environ.get("RONDE_TEST_DEVICE") == "gpu" else "cpu"

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
        if DEVICE == "cuda":
            torch.cuda.set_device(int(os.environ["HOROVOD_LOCAL_RANK"]) % torch.cuda.device_count())
            torch.set_default_device(DEVICE)

    def seed(self):
        torch.manual_seed(1)

    def tensor(self, array, dtype="float32"):
        # The default device is only that of the main thread.
        return torch.as_tensor(np.array(array), device=DEVICE).to(getattr(torch, dtype))

    def values(self, tensor):
        tensor = tensor.detach().cpu()
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
