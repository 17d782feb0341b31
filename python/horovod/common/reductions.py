"""The reductions with Horovod's numbers, and the deprecated `average`."""

from __future__ import annotations

import enum
import numbers
import warnings

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "UnsupportedReductionError",
    "handle_average_backwards_compatibility",
]


class ReduceOp(enum.IntEnum):
    """How a collective combines the values of the ranks; the type of its `op` argument.

    Every framework module exports the members as `hvd.Average`, `hvd.Sum` and so on. Members are
    Horovod's integers: they compare, hash, format and pickle like integers, and a plain integer
    works wherever a member does.

    Example:
        >>> import horovod.torch as hvd
        >>> hvd.Sum
        ReduceOp.Sum
        >>> hvd.Sum == 1
        True
    """

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5

    # Programs print these, and put them into file names and generated code, as plain numbers;
    # Python before 3.11 would print the name.
    __str__ = int.__repr__
    __format__ = int.__format__  # type: ignore[assignment, unused-ignore]

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


Average = ReduceOp.Average
"""Mean over the ranks. Integers are truncated toward zero."""

Sum = ReduceOp.Sum
"""Sum over the ranks."""

Adasum = ReduceOp.Adasum
"""Adaptive sum: gradients that point the same way are averaged, orthogonal ones are added.

Works on floating-point tensors and on any number of ranks.
"""

Min = ReduceOp.Min
"""Element-wise minimum over the ranks."""

Max = ReduceOp.Max
"""Element-wise maximum over the ranks."""

Product = ReduceOp.Product
"""Element-wise product over the ranks."""


_NUMBERS = frozenset(map(int, ReduceOp))


class UnsupportedReductionError(NotImplementedError, ValueError):
    """A collective does not support the requested reduction.

    Depending on the framework, Horovod raises a `RuntimeError`, a `NotImplementedError` or a
    `ValueError` for it; this class is all of them.
    """


def check_reduction(op: object) -> None:
    """Raise an error for an `op` that is not one of the reductions.

    Constants of other libraries are refused even if they convert to an integer:
    `torch.distributed.ReduceOp.SUM` is 0, which is `Average` here.

    Args:
        op: The reduction.

    Raises:
        ValueError: If `op` is not a reduction.
    """
    if not isinstance(op, (int, numbers.Integral)) or op not in _NUMBERS:
        raise ValueError(
            f"op is {op!r}; pass hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum"
        )


def check_scatter(op: int) -> None:
    """Raise an error for a reduction that reducescatter does not support.

    Args:
        op: The reduction.

    Raises:
        ValueError: If `op` is not a reduction.
        UnsupportedReductionError: If `op` is neither `Average` nor `Sum`.
    """
    if op not in (Average, Sum):
        raise UnsupportedReductionError("Reducescatter currently only supports AVERAGE and SUM.")
    check_reduction(op)


def predivided(factor: float, op: int) -> tuple[float, float]:
    """Return the factors before and after a reduction that does part of the averaging in advance.

    Args:
        factor: What to divide gradients by before the reduction; they are multiplied by it after.
        op: The reduction.

    Returns:
        The prescale and the postscale factor.

    Raises:
        ValueError: If `op` is not a reduction, or `factor` is not 1.0 and `op` is not `Average`.
    """
    check_reduction(op)
    if factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    return 1.0 / factor, factor


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """Return the reduction that `op` and the deprecated `average` ask for together.

    Args:
        op: The reduction, or None if the caller gave none.
        average: Deprecated: True means `Average`, False means `Sum`.

    Returns:
        The reduction; `Average` if both arguments are None.

    Raises:
        ValueError: If both arguments are given, or `op` is not a reduction.
    """
    if op is not None:
        check_reduction(op)
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    warnings.warn(
        "Parameter `average` has been replaced with `op` and will be removed in v1.0.",
        DeprecationWarning,
        stacklevel=3,
    )
    return Average if average else Sum
