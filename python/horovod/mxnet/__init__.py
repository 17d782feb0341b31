"""Horovod's API for MXNet: `import horovod.mxnet as hvd`.

This module only collects names; `mpi_ops` has the collectives, `functions` what is built on them,
`optimizer` the distributed optimizer and trainer.
"""

from __future__ import annotations

try:
    import mxnet as _mxnet  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "mxnet":
        raise
    raise ImportError(
        "horovod.mxnet needs MXNet, which is not installed here; install it with "
        "`pip install mxnet==1.9.1 'numpy<1.24'`",
        name="mxnet",
    ) from error
except AttributeError as error:
    # MXNet 1.9 uses names that NumPy 1.24 removed.
    raise ImportError(
        f"MXNet could not be imported ({error}); it needs an older NumPy: "
        "`pip install 'numpy<1.24'`",
        name="mxnet",
    ) from error

from horovod.common import world as _world
from horovod.common.exceptions import HorovodInternalError
from horovod.common.objects import allgather_object, broadcast_object
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.common.world import *  # noqa: F403
from horovod.mxnet.compression import Compression
from horovod.mxnet.functions import broadcast_parameters
from horovod.mxnet.mpi_ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    reducescatter,
)
from horovod.mxnet.optimizer import DistributedOptimizer, DistributedTrainer

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
    "remove_process_set",
    *_world.__all__,
]
