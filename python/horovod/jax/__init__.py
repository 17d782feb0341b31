"""Horovod's API for JAX: `import horovod.jax as hvd`.

This module only collects names; `mpi_ops` has the collectives, `functions` what is built on them,
`optimizer` the wrapper for optax, `elastic` elastic training.
"""

from __future__ import annotations

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ImportError(
        "horovod.jax needs JAX, which is not installed here; install it with `pip install jax`",
        name="jax",
    ) from error

from horovod.common import world as _world
from horovod.common.exceptions import HorovodInternalError
from horovod.common.objects import allgather_object, broadcast_object
from horovod.common.world import *  # noqa: F403
from horovod.jax import elastic
from horovod.jax.compression import Compression
from horovod.jax.distributed import init_jax_distributed
from horovod.jax.functions import broadcast_optimizer_state, broadcast_parameters
from horovod.jax.mpi_ops import (
    Adasum,
    Average,
    Max,
    Min,
    ProcessSet,
    Product,
    ReduceOp,
    Sum,
    add_process_set,
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    global_process_set,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reducescatter,
    remove_process_set,
)
from horovod.jax.optimizer import DistributedOptimizer

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
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
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init_jax_distributed",
    "join",
    "reducescatter",
    "remove_process_set",
    *_world.__all__,
]
