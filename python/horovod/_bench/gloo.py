"""torch.distributed's gloo in the same processes, on the same memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from horovod._bench import models
from horovod._bench.memory import Mapping, Memory, Task
from horovod._bench.worker import Prepared


def start() -> tuple[Gloo, str]:
    """Joins gloo's group with the variables that the launcher exports; also returns its version."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    return Gloo(), f"torch {torch.__version__}"


class Gloo:
    """Blocking calls of torch.distributed."""

    def barrier(self) -> None:
        """Waits until all ranks have reached it."""
        dist.barrier()

    def prepare(self, task: Task, memory: Memory) -> Prepared:
        """The call that a user of torch.distributed would make."""
        if task.collective == "barrier":
            return Prepared(self.barrier)
        if task.collective in models.STEPS:
            return Prepared(_step(memory), lambda _: memory.source.address)
        ((_, size),) = memory.places
        tensor = _view(memory.source, task.dtype, 0, size)
        shares = {
            "allgather": size * task.ranks,
            "alltoall": size,
            "reducescatter": size // task.ranks,
        }
        made = _view(memory.target, task.dtype, 0, shares.get(task.collective, size))
        calls: dict[str, tuple[Callable[[], Any], Mapping]] = {
            "allreduce": (lambda: dist.all_reduce(tensor), memory.source),
            "broadcast": (lambda: dist.broadcast(tensor, 0), memory.source),
            "allgather": (lambda: dist.all_gather_into_tensor(made, tensor), memory.target),
            "alltoall": (lambda: dist.all_to_all_single(made, tensor), memory.target),
            "reducescatter": (lambda: dist.reduce_scatter_tensor(made, tensor), memory.target),
        }
        call, result = calls[task.collective]
        return Prepared(call, lambda _: result.address)


def _step(memory: Memory) -> Callable[[], None]:
    """A step in buckets, copied in and out, like torch's data-parallel wrapper."""
    buckets = []
    end = 0
    for row in models.buckets(memory.places):
        parts = [_view(memory.source, memory.task.dtype, place, size) for place, size in row]
        length = sum(size for _, size in row)
        buckets.append((parts, _view(memory.target, memory.task.dtype, end, length)))
        end += length

    def call() -> None:
        flights = []
        for parts, flat in buckets:
            torch.cat(parts, out=flat)
            flights.append(dist.all_reduce(flat, async_op=True))
        for (parts, flat), flight in zip(buckets, flights):
            flight.wait()
            torch._foreach_copy_(parts, torch.split_with_sizes(flat, [len(part) for part in parts]))

    return call


def _view(mapping: Mapping, dtype: str, start: int, size: int) -> torch.Tensor:
    kind = getattr(torch, dtype)
    return torch.frombuffer(mapping.buffer, dtype=kind, count=size // kind.itemsize, offset=start)
