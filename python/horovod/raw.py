"""The collectives on bare NumPy arrays and torch tensors, whatever framework you use.

This is a thin layer over the engine: no gradients, no compression, no optimizer. Results have the
same type as the inputs. Every operation has a blocking form and an `_async` form, which returns a
`Pending`; inputs must not change until it is done. A result that has the shape of the input can be
written to `out`, which may be the input itself. Inputs that are not contiguous are copied; `out`
must be contiguous and writable. Integers, booleans, `float16`, `bfloat16` (of `ml_dtypes` or
torch), `float32` and `float64` are supported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod import _native, _raw
from horovod._raw import Pending
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    registered_id,
    remove_process_set,
    restart_unnamed,
)
from horovod.common.reductions import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
)
from horovod.common.world import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Pending",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_async",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "shutdown",
    "size",
]


def allreduce(
    array: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    out: Any = None,
) -> Any:
    """Reduce an array over all ranks and return the result.

    Args:
        array: NumPy array or torch tensor on the CPU; any shape, the same on every rank.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        op: Reduction: `raw.Average`, `raw.Sum`, `raw.Min`, `raw.Max`, `raw.Product` or `raw.Adasum`
            (default: `raw.Average`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).
        out: Where to write the result: a contiguous, writable array like the input, or the input
            itself (default: a new array).

    Returns:
        An array with the shape and element type of `array`, the same on every rank; `out` if it was
        given.

    Raises:
        TypeError: If an input is neither a NumPy array nor a torch tensor.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.

    Example:
        ```python
        import numpy as np
        from horovod import raw

        raw.init()
        mean = raw.allreduce(np.ones(3) * raw.rank())
        values = np.ones(3)
        raw.allreduce(values, op=raw.Sum, out=values)
        ```
    """
    factors = (prescale_factor, postscale_factor)
    return _raw.allreduce(array, name, op, factors, process_set, out, True).wait()


def allreduce_async(
    array: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    out: Any = None,
) -> Pending[Any]:
    """Start reducing an array over all ranks.

    Args:
        array: NumPy array or torch tensor on the CPU; any shape, the same on every rank.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        op: Reduction: `raw.Average`, `raw.Sum`, `raw.Min`, `raw.Max`, `raw.Product` or `raw.Adasum`
            (default: `raw.Average`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).
        out: Where to write the result: a contiguous, writable array like the input, or the input
            itself (default: a new array).

    Returns:
        The operation in flight; call `wait()` for the result of `allreduce`.

    Raises:
        TypeError: If an input is neither a NumPy array nor a torch tensor.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    factors = (prescale_factor, postscale_factor)
    return _raw.allreduce(array, name, op, factors, process_set, out, False)


def grouped_allreduce(
    arrays: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    out: Sequence[Any] | None = None,
) -> list[Any]:
    """Reduce several arrays over all ranks as one operation.

    Args:
        arrays: NumPy arrays or torch tensors on the CPU, all of one element type; the same number
            and the same shapes on every rank.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        op: Reduction: `raw.Average`, `raw.Sum`, `raw.Min`, `raw.Max`, `raw.Product` or `raw.Adasum`
            (default: `raw.Average`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).
        out: Where to write the results: contiguous, writable arrays like the inputs, or the inputs
            themselves (default: new arrays).

    Returns:
        Arrays, in the order of `arrays`.

    Raises:
        TypeError: If an input is neither a NumPy array nor a torch tensor.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    factors = (prescale_factor, postscale_factor)
    return _raw.grouped_allreduce(arrays, name, op, factors, process_set, out, True).wait()


def grouped_allreduce_async(
    arrays: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    out: Sequence[Any] | None = None,
) -> Pending[list[Any]]:
    """Start reducing several arrays over all ranks as one operation.

    Args:
        arrays: NumPy arrays or torch tensors on the CPU, all of one element type; the same number
            and the same shapes on every rank.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        op: Reduction: `raw.Average`, `raw.Sum`, `raw.Min`, `raw.Max`, `raw.Product` or `raw.Adasum`
            (default: `raw.Average`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).
        out: Where to write the results: contiguous, writable arrays like the inputs, or the inputs
            themselves (default: new arrays).

    Returns:
        The operation in flight; call `wait()` for the result of `grouped_allreduce`.

    Raises:
        TypeError: If an input is neither a NumPy array nor a torch tensor.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    factors = (prescale_factor, postscale_factor)
    return _raw.grouped_allreduce(arrays, name, op, factors, process_set, out, False)


def allgather(
    array: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Concatenate the arrays of all ranks along the first dimension.

    Args:
        array: NumPy array or torch tensor on the CPU with at least one dimension. The first
            dimension may differ between ranks, the others must be the same.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A new array with the rows of all ranks, in the order of the ranks.

    Raises:
        TypeError: If an input is neither a NumPy array nor a torch tensor.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    return _raw.allgather(array, name, process_set, True).wait()


def allgather_async(
    array: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Pending[Any]:
    """Start concatenating the arrays of all ranks along the first dimension.

    Args:
        array: NumPy array or torch tensor on the CPU with at least one dimension. The first
            dimension may differ between ranks, the others must be the same.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        The operation in flight; call `wait()` for the result of `allgather`.

    Raises:
        TypeError: If an input is neither a NumPy array nor a torch tensor.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    return _raw.allgather(array, name, process_set, False)


def grouped_allgather(
    arrays: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Concatenate several arrays of all ranks as one operation.

    Args:
        arrays: NumPy arrays or torch tensors on the CPU, all of one element type, with at least one
            dimension; the same number on every rank. First dimensions may differ between ranks, the
            others must be the same.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        New arrays, in the order of `arrays`.

    Raises:
        TypeError: If an input is neither a NumPy array nor a torch tensor.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    return _raw.grouped_allgather(arrays, name, process_set, True).wait()


def grouped_allgather_async(
    arrays: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Pending[list[Any]]:
    """Start concatenating several arrays of all ranks as one operation.

    Args:
        arrays: NumPy arrays or torch tensors on the CPU, all of one element type, with at least one
            dimension; the same number on every rank. First dimensions may differ between ranks, the
            others must be the same.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        The operation in flight; call `wait()` for the result of `grouped_allgather`.

    Raises:
        TypeError: If an input is neither a NumPy array nor a torch tensor.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    return _raw.grouped_allgather(arrays, name, process_set, False)


def broadcast(
    array: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: Any = None,
) -> Any:
    """Send an array from one rank to all others and return it.

    Args:
        array: NumPy array or torch tensor on the CPU; any shape, the same on every rank.
        root_rank: Rank that sends, counted among all ranks of the job even if `process_set` is
            smaller.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).
        out: Where to write the result: a contiguous, writable array like the input, or the input
            itself (default: a new array).

    Returns:
        An array with what `array` holds on rank `root_rank`; `out` if it was given.

    Raises:
        TypeError: If an input is neither a NumPy array nor a torch tensor.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    return _raw.broadcast(array, root_rank, name, process_set, out, True).wait()


def broadcast_async(
    array: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: Any = None,
) -> Pending[Any]:
    """Start sending an array from one rank to all others.

    Args:
        array: NumPy array or torch tensor on the CPU; any shape, the same on every rank.
        root_rank: Rank that sends, counted among all ranks of the job even if `process_set` is
            smaller.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).
        out: Where to write the result: a contiguous, writable array like the input, or the input
            itself (default: a new array).

    Returns:
        The operation in flight; call `wait()` for the result of `broadcast`.

    Raises:
        TypeError: If an input is neither a NumPy array nor a torch tensor.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    return _raw.broadcast(array, root_rank, name, process_set, out, False)


def alltoall(
    array: Any,
    splits: Sequence[Any] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[Any, list[int]]:
    """Send different rows of an array to different ranks.

    Args:
        array: NumPy array or torch tensor on the CPU with at least one dimension. The first
            dimension may differ between ranks, the others must be the same.
        splits: How many rows each rank of `process_set` gets, in the order of the ranks. Rows
            beyond their sum are not sent (default: the same number for every rank).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A pair: the rows that the ranks sent to this one, in the order of the ranks, and how many
        came from each rank.

    Raises:
        TypeError: If an input is neither a NumPy array nor a torch tensor.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    return _raw.alltoall(array, splits, name, process_set, True).wait()


def alltoall_async(
    array: Any,
    splits: Sequence[Any] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Pending[tuple[Any, list[int]]]:
    """Start sending different rows of an array to different ranks.

    Args:
        array: NumPy array or torch tensor on the CPU with at least one dimension. The first
            dimension may differ between ranks, the others must be the same.
        splits: How many rows each rank of `process_set` gets, in the order of the ranks. Rows
            beyond their sum are not sent (default: the same number for every rank).
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        The operation in flight; call `wait()` for the result of `alltoall`.

    Raises:
        TypeError: If an input is neither a NumPy array nor a torch tensor.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
    """
    return _raw.alltoall(array, splits, name, process_set, False)


def reducescatter(
    array: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce an array over all ranks and return this rank's share of the rows.

    Rows are split evenly; if they do not divide by the number of ranks, the first ranks get one
    extra row.

    Args:
        array: NumPy array or torch tensor on the CPU with at least one dimension, of the same shape
            on every rank.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        op: Reduction: `raw.Average` or `raw.Sum` (default: `raw.Average`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A new array with this rank's rows.

    Raises:
        TypeError: If an input is neither a NumPy array nor a torch tensor.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
        UnsupportedReductionError: If `op` is neither `raw.Average` nor `raw.Sum`; it is a
            `NotImplementedError` and a `ValueError`.
    """
    factors = (prescale_factor, postscale_factor)
    return _raw.reducescatter(array, name, op, factors, process_set, True).wait()


def reducescatter_async(
    array: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Pending[Any]:
    """Start a reduction that gives each rank its share of the rows.

    Args:
        array: NumPy array or torch tensor on the CPU with at least one dimension, of the same shape
            on every rank.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        op: Reduction: `raw.Average` or `raw.Sum` (default: `raw.Average`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        The operation in flight; call `wait()` for the result of `reducescatter`.

    Raises:
        TypeError: If an input is neither a NumPy array nor a torch tensor.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
        UnsupportedReductionError: If `op` is neither `raw.Average` nor `raw.Sum`; it is a
            `NotImplementedError` and a `ValueError`.
    """
    factors = (prescale_factor, postscale_factor)
    return _raw.reducescatter(array, name, op, factors, process_set, False)


def grouped_reducescatter(
    arrays: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Reduce several arrays as one operation and return this rank's share of the rows.

    Rows are split evenly; if they do not divide by the number of ranks, the first ranks get one
    extra row.

    Args:
        arrays: NumPy arrays or torch tensors on the CPU, all of one element type, with at least one
            dimension; the same number and the same shapes on every rank.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        op: Reduction: `raw.Average` or `raw.Sum` (default: `raw.Average`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        New arrays with this rank's rows, in the order of `arrays`.

    Raises:
        TypeError: If an input is neither a NumPy array nor a torch tensor.
        HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element type or
            operation.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
        UnsupportedReductionError: If `op` is neither `raw.Average` nor `raw.Sum`; it is a
            `NotImplementedError` and a `ValueError`.
    """
    factors = (prescale_factor, postscale_factor)
    return _raw.grouped_reducescatter(arrays, name, op, factors, process_set, True).wait()


def grouped_reducescatter_async(
    arrays: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Pending[list[Any]]:
    """Start several reductions that give each rank its share of the rows.

    Args:
        arrays: NumPy arrays or torch tensors on the CPU, all of one element type, with at least one
            dimension; the same number and the same shapes on every rank.
        name: Name by which ranks match this operation; pass the same on every rank (default: ranks
            match unnamed operations in the order of the calls).
        op: Reduction: `raw.Average` or `raw.Sum` (default: `raw.Average`).
        prescale_factor: Factor applied to the input before the reduction; the same on every rank
            (default: 1.0).
        postscale_factor: Factor applied to the result after the reduction; the same on every rank
            (default: 1.0).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        The operation in flight; call `wait()` for the result of `grouped_reducescatter`.

    Raises:
        TypeError: If an input is neither a NumPy array nor a torch tensor.
        ValueError: If Horovod is not initialized, this rank is not in `process_set`, an operation
            of that name is already in flight, or the element type is not supported.
        UnsupportedReductionError: If `op` is neither `raw.Average` nor `raw.Sum`; it is a
            `NotImplementedError` and a `ValueError`.
    """
    factors = (prescale_factor, postscale_factor)
    return _raw.grouped_reducescatter(arrays, name, op, factors, process_set, False)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks have called this function.

    Args:
        process_set: Ranks that take part (default: all ranks).

    Raises:
        HorovodInternalError: If a rank was lost.
        ValueError: If Horovod is not initialized, or this rank is not in `process_set`.
    """
    _native.wait(_native.barrier("barrier.noname", True, registered_id(process_set)))


def join() -> int:
    """Tell the other ranks that this one has no more data, and wait until all ranks have joined.

    Meanwhile this rank contributes zeros to the reductions of the others; averages still divide by
    the number of all ranks. Other collectives fail while some rank has joined.

    Returns:
        The rank that joined last.

    Raises:
        HorovodInternalError: If a rank was lost.
        ValueError: If Horovod is not initialized.
    """
    last: int = _native.wait(_native.join(True))
    restart_unnamed()
    return last
