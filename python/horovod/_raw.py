"""Passes bare arrays to the native module: the code that the functions of `raw` share.

`lazy` says that the caller waits at once: it then does the work itself and wakes no thread.
"""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from horovod import _native
from horovod.common.calls import equal_splits, full_name
from horovod.common.process_sets import ProcessSet
from horovod.common.reductions import check_reduction, check_scatter

Result = TypeVar("Result")


class Pending(Generic[Result]):
    """An operation in flight.

    The `_async` functions return it.

    Args:
        handle: Number of the operation in the native module.
        finish: Function that turns what the native module returns into the result.
    """

    def __init__(self, handle: int, finish: Callable[[Any], Result]) -> None:
        self._handle = handle
        self._finish = finish
        self._result: list[Result] = []

    def poll(self) -> bool:
        """Return whether the operation is done.

        Returns:
            True if `wait` would return at once.

        Raises:
            ValueError: If the world in which it was started has ended.
        """
        return bool(self._result) or _native.poll(self._handle)

    def wait(self) -> Result:
        """Wait for the operation and return its result.

        Returns:
            The result; the same object if asked again.

        Raises:
            HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element
                type or operation.
        """
        if not self._result:
            self._result.append(self._finish(_native.wait(self._handle)))
        return self._result[0]


def allreduce(
    array: Any,
    name: str | None,
    op: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
    out: Any,
    lazy: bool,
) -> Pending[Any]:
    """Submits a reduction."""
    check_reduction(op)
    full, number = full_name("allreduce", name, process_set)
    source = _readable(array)
    target = _empty_like(source) if out is None else out
    return Pending(_native.allreduce(source, target, full, op, *factors, lazy, number), _as_it_is)


def grouped_allreduce(
    arrays: Sequence[Any],
    name: str | None,
    op: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
    out: Sequence[Any] | None,
    lazy: bool,
) -> Pending[list[Any]]:
    """Submits reductions that run together."""
    check_reduction(op)
    full, number = full_name("grouped_allreduce", name, process_set)
    sources = [_readable(array) for array in arrays]
    targets = [_empty_like(source) for source in sources] if out is None else out
    handle = _native.grouped_allreduce(sources, targets, full, op, *factors, lazy, number)
    return Pending(handle, _as_it_is)


def allgather(array: Any, name: str | None, process_set: ProcessSet, lazy: bool) -> Pending[Any]:
    """Submits an allgather along the first dimension."""
    full, number = full_name("allgather", name, process_set)
    source = _readable(array)
    handle = _native.allgather(source, full, lazy, number)
    return Pending(handle, lambda made: _rows(made, source))


def grouped_allgather(
    arrays: Sequence[Any], name: str | None, process_set: ProcessSet, lazy: bool
) -> Pending[list[Any]]:
    """Submits allgathers that run together."""
    full, number = full_name("grouped_allgather", name, process_set)
    sources = [_readable(array) for array in arrays]
    handle = _native.grouped_allgather(sources, full, lazy, number)
    return Pending(handle, lambda made: [_rows(*each) for each in zip(made, sources)])


def broadcast(
    array: Any, root: int, name: str | None, process_set: ProcessSet, out: Any, lazy: bool
) -> Pending[Any]:
    """Submits a broadcast from rank `root`."""
    full, number = full_name("broadcast", name, process_set)
    source = _readable(array)
    target = _empty_like(source) if out is None else out
    return Pending(_native.broadcast(source, target, full, root, lazy, number), _as_it_is)


def alltoall(
    array: Any, splits: Sequence[Any] | None, name: str | None, process_set: ProcessSet, lazy: bool
) -> Pending[tuple[Any, list[int]]]:
    """Submits an exchange of rows."""
    full, number = full_name("alltoall", name, process_set)
    source = _readable(array)
    rows = _rows_to_send(source, splits, process_set)
    handle = _native.alltoall(source, rows, full, lazy, number)
    return Pending(handle, lambda made: (_rows(made, source), made[1]))


def reducescatter(
    array: Any,
    name: str | None,
    op: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
    lazy: bool,
) -> Pending[Any]:
    """Submits a reduction; each rank gets its share of the rows."""
    check_scatter(op)
    full, number = full_name("reducescatter", name, process_set)
    source = _readable(array)
    handle = _native.reducescatter(source, full, op, *factors, lazy, number)
    return Pending(handle, lambda made: _rows(made, source))


def grouped_reducescatter(
    arrays: Sequence[Any],
    name: str | None,
    op: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
    lazy: bool,
) -> Pending[list[Any]]:
    """Submits several such reductions that run together."""
    check_scatter(op)
    full, number = full_name("grouped_reducescatter", name, process_set)
    sources = [_readable(array) for array in arrays]
    handle = _native.grouped_reducescatter(sources, full, op, *factors, lazy, number)
    return Pending(handle, lambda made: [_rows(*each) for each in zip(made, sources)])


def _rows_to_send(array: Any, splits: Sequence[Any] | None, process_set: ProcessSet) -> list[int]:
    if splits is not None:
        return _whole(splits)
    return equal_splits(array.shape[0] if len(array.shape) else 0, process_set.size() or 1)


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
    """The array's library, NumPy or torch; torch is already loaded if this is its tensor."""
    return importlib.import_module("numpy") if _is_numpy(array) else sys.modules["torch"]


def _readable(array: Any) -> Any:
    """The array itself, or a contiguous copy of one that is not."""
    if _is_numpy(array):
        return array if array.flags.c_contiguous else array.copy(order="C")
    if hasattr(array, "detach"):
        return array.detach().contiguous()
    raise TypeError(
        f"this is a `{type(array).__name__}`; horovod.raw takes NumPy arrays and torch tensors, so "
        "convert it with numpy.asarray(...)"
    )


def _empty_like(array: Any) -> Any:
    return _library(array).empty_like(array)


def _rows(made: tuple[Any, list[int]], like: Any) -> Any:
    """Makes an array from a capsule of bytes, which it then owns, and its numbers of rows."""
    capsule, rows = made
    shape = (sum(rows), *like.shape[1:])
    library = _library(like)
    if 0 in shape:
        return library.empty(shape, dtype=like.dtype)
    if _is_numpy(like):
        return library.asarray(_native.claim(capsule)).view(like.dtype).reshape(shape)
    return library.from_dlpack(capsule).view(like.dtype).reshape(shape)
