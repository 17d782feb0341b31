"""Maps the reductions of `torch.distributed` to those of the engine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp

from horovod.torch import submit


class Reduction(NamedTuple):
    """A reduction by the engine, or a bitwise one on the gathered tensors of all ranks."""

    op: int = submit.Sum
    prescale: float = 1.0
    bitwise: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None

    def of(self, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Combines the tensors of all ranks bit by bit."""
        assert self.bitwise is not None, "the engine does the other reductions"
        return functools.reduce(self.bitwise, parts)


_NATIVE = {
    ReduceOp.SUM: submit.Sum,
    ReduceOp.AVG: submit.Average,
    ReduceOp.PRODUCT: submit.Product,
    ReduceOp.MIN: submit.Min,
    ReduceOp.MAX: submit.Max,
}
_BITWISE = {
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}


def reduction(options: Any) -> Reduction:
    """The reduction requested by the options of a call; a sum without options."""
    if options is None:
        return Reduction()
    asked = options.reduceOp
    kind = getattr(asked, "op", asked)
    if kind in _NATIVE:
        return Reduction(_NATIVE[kind])
    if kind in _BITWISE:
        return Reduction(bitwise=_BITWISE[kind])
    if kind == ReduceOp.PREMUL_SUM and hasattr(asked, "factor"):
        return Reduction(prescale=float(asked.factor))
    raise NotImplementedError(f"the ronde backend has no reduction `{kind}`")
