"""Horovod's API for MXNet: `import horovod.mxnet as hvd`.

This module only collects names; `mpi_ops` has the collectives, `functions` what is built from them,
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
    # MXNet 1.9 uses names that NumPy 1.24 has removed.
    raise ImportError(
        f"MXNet could not be imported ({error}); it needs an older NumPy: "
        "`pip install 'numpy<1.24'`",
        name="mxnet",
    ) from error

from horovod.common.basics import _basics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.missing import not_in_this_release
from horovod.common.objects import allgather_object, broadcast_object
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.mxnet.compression import Compression
from horovod.mxnet.functions import broadcast_parameters
from horovod.mxnet.mpi_ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
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

init = _basics.init
shutdown = _basics.shutdown
is_initialized = _basics.is_initialized
start_timeline = _basics.start_timeline
stop_timeline = _basics.stop_timeline
rank = _basics.rank
size = _basics.size
local_rank = _basics.local_rank
local_size = _basics.local_size
cross_rank = _basics.cross_rank
cross_size = _basics.cross_size
mpi_threads_supported = _basics.mpi_threads_supported
mpi_enabled = _basics.mpi_enabled
mpi_built = _basics.mpi_built
gloo_enabled = _basics.gloo_enabled
gloo_built = _basics.gloo_built
nccl_built = _basics.nccl_built
ddl_built = _basics.ddl_built
ccl_built = _basics.ccl_built
cuda_built = _basics.cuda_built
rocm_built = _basics.rocm_built

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
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def __getattr__(name: str) -> object:
    raise not_in_this_release(__name__, name)
