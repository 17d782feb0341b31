"""The reductions by the numbers that Horovod's users know, and what the old `average` means."""

from __future__ import annotations

import warnings

Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5


class UnsupportedReductionError(NotImplementedError, ValueError):
    """A collective does not have this reduction.

    Horovod raises a RuntimeError, a NotImplementedError or a ValueError for it, depending on the
    framework; this is all of them.
    """


def check_scatter(op: int) -> None:
    """Refuses what a reducescatter cannot do."""
    if op not in (Average, Sum):
        raise UnsupportedReductionError("Reducescatter currently only supports AVERAGE and SUM.")


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """The reduction that `op` and the old `average` ask for together."""
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
