"""Broadcasting parameters, optimizer state and Python objects, and gathering objects.

Objects travel as cloudpickle bytes between ranks of one job, which have authenticated each other.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped, unused-ignore]
import torch

from horovod.common.basics import _basics
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import submit
from horovod.torch.handles import synchronize
from horovod.torch.mpi_ops import broadcast_
from horovod.torch.sparse import sparse_zeros

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Overwrite tensors with those of one rank, so that all ranks start with the same values.

    Args:
        params: A dictionary such as `model.state_dict()`, or a list of `(name, tensor)` pairs such
            as `list(model.named_parameters())`, or of tensors.
        root_rank: Rank that sends.

    Raises:
        ValueError: If `params` is of another type, or holds something that is not a tensor.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.

    Example:
        ```python
        import torch
        import horovod.torch as hvd

        hvd.init()
        model = torch.nn.Linear(10, 1)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        ```
    """
    if isinstance(params, Mapping):
        named = sorted(params.items())
    elif isinstance(params, list):
        named = [item if isinstance(item, tuple) else (None, item) for item in params]
    else:
        raise ValueError(
            f"invalid params of type: {type(params)}; pass model.state_dict() or "
            "list(model.named_parameters())"
        )
    for name, tensor in named:
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"invalid params: `{name}` is of type {type(tensor)}, not a tensor; "
                "send it with broadcast_object"
            )
    _broadcast_tensors([pair for pair in named if pair[1] is not None], root_rank)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Overwrite the state and the options of an optimizer with those of one rank.

    Use it after rank 0 has loaded a checkpoint. If the optimizer has no state yet, missing
    gradients are set to zeros.

    Args:
        optimizer: A torch optimizer, distributed or not.
        root_rank: Rank that sends.
        model: Model of the optimizer; needed if embeddings in it have sparse gradients (default:
            None).

    Raises:
        ValueError: If the optimizer is `torch.optim.LBFGS`.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.

    Example:
        ```python
        import torch
        import horovod.torch as hvd

        hvd.init()
        model = torch.nn.Linear(10, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        ```
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    if not optimizer.state:
        _fill_gradients(optimizer, model)
    is_root = _basics.rank() == root_rank
    skeleton, tensors = _take_apart(optimizer.state_dict()) if is_root else (b"", [])
    skeleton = broadcast_object(skeleton, root_rank, "optimizer_state")
    state_dict = None
    if not is_root:
        state_dict, tensors = _put_together(skeleton)
    named = [(f"optimizer_state.{number}", tensor) for number, tensor in enumerate(tensors)]
    _broadcast_tensors(named, root_rank)
    if state_dict is not None:
        load_optimizer(optimizer, state_dict)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a Python object from one rank to all others.

    The object travels as cloudpickle bytes.

    Args:
        obj: Any object that can be pickled; ignored on ranks other than `root_rank`.
        root_rank: Rank that sends, counted among all ranks of the job even if `process_set` is
            smaller (default: 0).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        The object of rank `root_rank`; there, the object itself.

    Raises:
        HorovodInternalError: If a rank was lost.
        ValueError: If Horovod is not initialized, or this rank is not in `process_set`.

    Example:
        ```python
        import horovod.torch as hvd

        hvd.init()
        config = hvd.broadcast_object({"lr": 0.1} if hvd.rank() == 0 else None)
        ```
    """
    # Horovod's default, the name of the type, would differ between ranks if some pass None.
    name = name or "broadcast_object"
    is_root = _basics.rank() == root_rank
    data = bytearray(cloudpickle.dumps(obj)) if is_root else bytearray()
    length = broadcast_(torch.tensor([len(data)]), root_rank, f"{name}.sz", process_set)
    if not is_root:
        data = bytearray(int(length))
    broadcast_(torch.frombuffer(data, dtype=torch.uint8), root_rank, f"{name}.t", process_set)
    return obj if is_root else cloudpickle.loads(data)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Collect a Python object from every rank.

    The objects travel as cloudpickle bytes.

    Args:
        obj: Any object that can be pickled.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).

    Returns:
        The objects of all ranks, in the order of the ranks.

    Raises:
        HorovodInternalError: If a rank was lost.
        ValueError: If Horovod is not initialized.
    """
    data = bytearray(cloudpickle.dumps(obj))
    tensor = torch.frombuffer(data, dtype=torch.uint8)
    pending = submit.allgather(tensor, name or "allgather_object", global_process_set, lazy=True)
    gathered, lengths = pending.wait_with_rows()
    return [cloudpickle.loads(_bytes_of(part)) for part in torch.split(gathered, lengths)]


def _fill_gradients(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    sparse = {
        id(layer.weight)
        for layer in (model.modules() if model is not None else ())
        if isinstance(layer, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and layer.sparse
    }
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not parameter.requires_grad or parameter.grad is not None:
                continue
            if isinstance(optimizer, torch.optim.SparseAdam) or id(parameter) in sparse:
                parameter.grad = sparse_zeros(parameter, 1)
            else:
                parameter.grad = torch.zeros_like(parameter)


def _bytes_of(tensor: torch.Tensor) -> bytearray:
    data = bytearray(tensor.numel())
    torch.frombuffer(data, dtype=torch.uint8).copy_(tensor)
    return data


def _broadcast_tensors(named: Sequence[tuple[str | None, torch.Tensor]], root_rank: int) -> None:
    pending = []
    for name, tensor in named:
        # A tensor in another memory format, such as channels_last, goes through a copy.
        dense = submit.readable(tensor)
        handle = submit.broadcast(dense, dense, root_rank, name, global_process_set)
        pending.append((handle, tensor, dense))
    for handle, tensor, dense in pending:
        synchronize(handle)
        if dense is not tensor:
            with torch.no_grad():
                tensor.copy_(dense)


def load_optimizer(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """Loads a state whose tensors become the optimizer's own; its groups stay the same."""
    # Schedulers and the wrapped optimizer may hold the dictionaries of the groups, so these must
    # stay the same objects.
    groups = list(optimizer.param_groups)
    optimizer.load_state_dict(state_dict)
    for group, loaded in zip(groups, optimizer.param_groups):
        group.update(loaded)
    optimizer.param_groups[:] = groups


def _take_apart(value: Any) -> tuple[bytes, list[torch.Tensor]]:
    stream = io.BytesIO()
    pickler = _SkeletonPickler(stream)
    pickler.dump(value)
    return stream.getvalue(), pickler.tensors


def _put_together(skeleton: bytes) -> tuple[Any, list[torch.Tensor]]:
    unpickler = _SkeletonUnpickler(io.BytesIO(skeleton))
    return unpickler.load(), unpickler.tensors


class _SkeletonPickler(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
    """Pickles a value without the contents of its tensors, which it collects."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.tensors: list[torch.Tensor] = []

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        self.tensors.append(value)
        return value.dtype, tuple(value.shape)


class _SkeletonUnpickler(pickle.Unpickler):
    """Unpickles such a value with unfilled tensors, which it collects."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.tensors: list[torch.Tensor] = []

    def persistent_load(self, pid: Any) -> torch.Tensor:
        dtype, shape = pid
        self.tensors.append(torch.empty(shape, dtype=dtype))
        return self.tensors[-1]
