"""Reduces sparse tensors: indices and values are gathered, and equal indices summed."""

from __future__ import annotations

import torch

from horovod.common.process_sets import ProcessSet
from horovod.torch import submit


class SparseReduction:
    """The indices and values of a sparse tensor in flight."""

    def __init__(
        self, tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet
    ) -> None:
        submit.check_tensor(tensor)
        if not tensor.is_sparse:
            raise ValueError(f"`{name}` is not a sparse COO tensor; use allreduce for dense ones.")
        if op not in (submit.Average, submit.Sum):
            raise ValueError(
                f"`{name}` is sparse and can only be averaged or summed; pass "
                "sparse_as_dense=True for other operations."
            )
        tensor = tensor.coalesce()
        self._shape = tensor.shape
        self._result: torch.Tensor | None = None
        indices = tensor.indices().t().contiguous()
        values = submit.readable(tensor.values())
        self._indices = submit.allgather(indices, name and f"{name}.indices", process_set)
        self._values = submit.allgather(values, name and f"{name}.values", process_set)
        self._divisor = (process_set.size() or 1) if op == submit.Average else 1

    def wait(self) -> torch.Tensor:
        """Waits for the reduced tensor, coalesced."""
        if self._result is None:
            indices = self._indices.wait().t()
            values = self._values.wait()
            summed = sparse_tensor(indices, values, self._shape).coalesce()
            if self._divisor != 1:
                # Integers are truncated toward zero, as in a dense average.
                how = None if values.is_floating_point() else "trunc"
                summed.values().div_(self._divisor, rounding_mode=how)
            self._result = summed
        return self._result


def sparse_zeros(parameter: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    """A sparse tensor without entries, of the shape and type of a parameter."""
    indices = torch.empty((sparse_dim, 0), dtype=torch.int64, device=parameter.device)
    values = parameter.new_empty((0, *parameter.shape[sparse_dim:]))
    return sparse_tensor(indices, values, parameter.shape)


def sparse_tensor(indices: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """A sparse tensor without another check: each rank has checked its own indices."""
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False)
