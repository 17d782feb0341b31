"""The collectives on bare arrays: NumPy's, or torch's tensors, whatever framework you use.

This is the engine with little around it: no gradients, no compression, no optimizer. What comes
back is of the kind that went in. Every operation has a blocking form and one with `_async`, which
gives a `Pending`; arrays must not change between the two. Where a result has the shape of the input
it can be written to `out`, which may be the input itself. Inputs that are not contiguous are
copied; `out` must be contiguous and writable. Integers, booleans, `float16`, `bfloat16` (of
`ml_dtypes` or torch), `float32` and `float64` are taken.
"""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from horovod import _native
from horovod.common.basics import _basics
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    next_unnamed,
    registered_id,
    remove_process_set,
    restart_unnamed,
)
from horovod.common.reductions import Adasum, Average, Max, Min, Product, Sum, check_scatter

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Pending",
    "ProcessSet",
    "Product",
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

init = _basics.init
shutdown = _basics.shutdown
is_initialized = _basics.is_initialized
rank = _basics.rank
size = _basics.size
local_rank = _basics.local_rank
local_size = _basics.local_size
cross_rank = _basics.cross_rank
cross_size = _basics.cross_size

Result = TypeVar("Result")


class Pending(Generic[Result]):
    """An operation in flight."""

    def __init__(self, handle: int, finish: Callable[[Any], Result]) -> None:
        self._handle = handle
        self._finish = finish
        self._result: list[Result] = []

    def poll(self) -> bool:
        """Whether `wait` would return at once."""
        return bool(self._result) or _native.poll(self._handle)

    def wait(self) -> Result:
        """Waits for the result; asked again, gives the same."""
        if not self._result:
            self._result.append(self._finish(_native.wait(self._handle)))
        return self._result[0]


def allreduce(
    array: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    out: Any = None,
) -> Any:
    """The reduction of `array` over all ranks of the set."""
    factors = (prescale_factor, postscale_factor)
    return _allreduce(array, name, op, factors, process_set, out, True).wait()


def allreduce_async(
    array: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    out: Any = None,
) -> Pending[Any]:
    """Starts the reduction of `array`."""
    factors = (prescale_factor, postscale_factor)
    return _allreduce(array, name, op, factors, process_set, out, False)


def grouped_allreduce(
    arrays: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    out: Sequence[Any] | None = None,
) -> list[Any]:
    """The reductions of several arrays of one element type, as one operation."""
    factors = (prescale_factor, postscale_factor)
    return _grouped_allreduce(arrays, name, op, factors, process_set, out, True).wait()


def grouped_allreduce_async(
    arrays: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    out: Sequence[Any] | None = None,
) -> Pending[list[Any]]:
    """Starts the reductions of several arrays of one element type."""
    factors = (prescale_factor, postscale_factor)
    return _grouped_allreduce(arrays, name, op, factors, process_set, out, False)


def allgather(
    array: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The rows of all ranks, one behind the other; ranks may contribute different numbers."""
    return _allgather(array, name, process_set, True).wait()


def allgather_async(
    array: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Pending[Any]:
    """Starts gathering the rows of all ranks."""
    return _allgather(array, name, process_set, False)


def grouped_allgather(
    arrays: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """The rows of all ranks for several arrays of one element type, as one operation."""
    return _grouped_allgather(arrays, name, process_set, True).wait()


def grouped_allgather_async(
    arrays: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Pending[list[Any]]:
    """Starts gathering the rows of all ranks for several arrays of one element type."""
    return _grouped_allgather(arrays, name, process_set, False)


def broadcast(
    array: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: Any = None,
) -> Any:
    """The array of rank `root_rank` of the world."""
    return _broadcast(array, root_rank, name, process_set, out, True).wait()


def broadcast_async(
    array: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: Any = None,
) -> Pending[Any]:
    """Starts a broadcast of the array of rank `root_rank` of the world."""
    return _broadcast(array, root_rank, name, process_set, out, False)


def alltoall(
    array: Any,
    splits: Sequence[Any] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[Any, list[int]]:
    """The rows that all ranks have for this one, and how many came from each.

    `splits` has, for each member of the set, how many rows it gets; without, all get the same.
    """
    return _alltoall(array, splits, name, process_set, True).wait()


def alltoall_async(
    array: Any,
    splits: Sequence[Any] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Pending[tuple[Any, list[int]]]:
    """Starts an exchange of rows."""
    return _alltoall(array, splits, name, process_set, False)


def reducescatter(
    array: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """This rank's share of the rows of the reduction; the first ranks get one more if need be."""
    factors = (prescale_factor, postscale_factor)
    return _reducescatter(array, name, op, factors, process_set, True).wait()


def reducescatter_async(
    array: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Pending[Any]:
    """Starts a reduction of which each rank gets its share of the rows."""
    factors = (prescale_factor, postscale_factor)
    return _reducescatter(array, name, op, factors, process_set, False)


def grouped_reducescatter(
    arrays: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Such shares of several arrays of one element type, as one operation."""
    factors = (prescale_factor, postscale_factor)
    return _grouped_reducescatter(arrays, name, op, factors, process_set, True).wait()


def grouped_reducescatter_async(
    arrays: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Pending[list[Any]]:
    """Starts such reductions of several arrays of one element type."""
    factors = (prescale_factor, postscale_factor)
    return _grouped_reducescatter(arrays, name, op, factors, process_set, False)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every rank of the set has come here."""
    _native.wait(_native.barrier("barrier.noname", True, registered_id(process_set)))


def join() -> int:
    """Contributes zeros to the others' reductions until all ranks have joined; gives the last."""
    last: int = _native.wait(_native.join(True))
    restart_unnamed()
    return last


def _allreduce(
    array: Any,
    name: str | None,
    op: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
    out: Any,
    lazy: bool,
) -> Pending[Any]:
    full, number = _full("allreduce", name, process_set)
    source = _readable(array)
    target = _empty_like(source) if out is None else out
    return Pending(_native.allreduce(source, target, full, op, *factors, lazy, number), _as_it_is)


def _grouped_allreduce(
    arrays: Sequence[Any],
    name: str | None,
    op: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
    out: Sequence[Any] | None,
    lazy: bool,
) -> Pending[list[Any]]:
    full, number = _full("grouped_allreduce", name, process_set)
    sources = [_readable(array) for array in arrays]
    targets = [_empty_like(source) for source in sources] if out is None else out
    handle = _native.grouped_allreduce(sources, targets, full, op, *factors, lazy, number)
    return Pending(handle, _as_it_is)


def _allgather(array: Any, name: str | None, process_set: ProcessSet, lazy: bool) -> Pending[Any]:
    full, number = _full("allgather", name, process_set)
    source = _readable(array)
    handle = _native.allgather(source, full, lazy, number)
    return Pending(handle, lambda made: _rows(made, source))


def _grouped_allgather(
    arrays: Sequence[Any], name: str | None, process_set: ProcessSet, lazy: bool
) -> Pending[list[Any]]:
    full, number = _full("grouped_allgather", name, process_set)
    sources = [_readable(array) for array in arrays]
    handle = _native.grouped_allgather(sources, full, lazy, number)
    return Pending(handle, lambda made: [_rows(*each) for each in zip(made, sources)])


def _broadcast(
    array: Any, root: int, name: str | None, process_set: ProcessSet, out: Any, lazy: bool
) -> Pending[Any]:
    full, number = _full("broadcast", name, process_set)
    source = _readable(array)
    target = _empty_like(source) if out is None else out
    return Pending(_native.broadcast(source, target, full, root, lazy, number), _as_it_is)


def _alltoall(
    array: Any, splits: Sequence[Any] | None, name: str | None, process_set: ProcessSet, lazy: bool
) -> Pending[tuple[Any, list[int]]]:
    full, number = _full("alltoall", name, process_set)
    source = _readable(array)
    rows = _equal_shares(source, process_set.size() or 1) if splits is None else _whole(splits)
    handle = _native.alltoall(source, rows, full, lazy, number)
    return Pending(handle, lambda made: (_rows(made, source), made[1]))


def _reducescatter(
    array: Any,
    name: str | None,
    op: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
    lazy: bool,
) -> Pending[Any]:
    check_scatter(op)
    full, number = _full("reducescatter", name, process_set)
    source = _readable(array)
    handle = _native.reducescatter(source, full, op, *factors, lazy, number)
    return Pending(handle, lambda made: _rows(made, source))


def _grouped_reducescatter(
    arrays: Sequence[Any],
    name: str | None,
    op: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
    lazy: bool,
) -> Pending[list[Any]]:
    check_scatter(op)
    full, number = _full("grouped_reducescatter", name, process_set)
    sources = [_readable(array) for array in arrays]
    handle = _native.grouped_reducescatter(sources, full, op, *factors, lazy, number)
    return Pending(handle, lambda made: [_rows(*each) for each in zip(made, sources)])


def _full(kind: str, name: str | None, process_set: ProcessSet) -> tuple[str, int]:
    """The name among the ranks, and the id of the set."""
    number = registered_id(process_set)
    return f"{kind}.{name}" if name else f"{kind}.noname.{next_unnamed(number)}", number


def _equal_shares(array: Any, members: int) -> list[int]:
    length = array.shape[0] if len(array.shape) else 0
    if length % members != 0:
        raise ValueError(
            "splits not provided, but first dimension of tensor is not an even multiple of the "
            f"number of workers. The array has {length} rows for {members} workers."
        )
    return [length // members] * members


def _whole(splits: Sequence[Any]) -> list[int]:
    try:
        rows = [operator.index(share) for share in splits]
    except TypeError as error:
        raise ValueError(
            "alltoall expects a 1D splits tensor, and splits to contain 32-bit integer elements. "
            f"These are {list(splits)} ({error})."
        ) from error
    if any(share < 0 for share in rows):
        raise ValueError(f"alltoall expects splits that are not negative, got {rows}")
    return rows


def _as_it_is(result: Any) -> Any:
    return result


def _is_numpy(array: Any) -> bool:
    return hasattr(array, "__array_interface__")


def _library(array: Any) -> Any:
    """NumPy or torch; torch is loaded if a tensor of it is here."""
    return importlib.import_module("numpy") if _is_numpy(array) else sys.modules["torch"]


def _readable(array: Any) -> Any:
    """The array itself, or a contiguous copy of one that is not."""
    if _is_numpy(array):
        return array if array.flags.c_contiguous else array.copy(order="C")
    if hasattr(array, "detach"):
        return array.detach().contiguous()
    raise TypeError(
        f"this is a `{type(array).__name__}`; horovod.raw takes NumPy arrays and torch tensors, so "
        "make it one with numpy.asarray(...)"
    )


def _empty_like(array: Any) -> Any:
    return _library(array).empty_like(array)


def _rows(made: tuple[Any, list[int]], like: Any) -> Any:
    """The array of a capsule of bytes, which it owns, and of its numbers of rows."""
    capsule, rows = made
    shape = (sum(rows), *like.shape[1:])
    library = _library(like)
    if 0 in shape:
        return library.empty(shape, dtype=like.dtype)
    if _is_numpy(like):
        return library.asarray(_native.claim(capsule)).view(like.dtype).reshape(shape)
    return library.from_dlpack(capsule).view(like.dtype).reshape(shape)
