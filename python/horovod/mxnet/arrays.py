"""MXNet's arrays as the native module and NumPy see them."""

from __future__ import annotations

import ctypes
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.libinfo import find_lib_path

from horovod import _native

_native.mxnet_open(find_lib_path()[0])

NUMBERS = {
    "float32": 0,
    "float64": 1,
    "float16": 2,
    "uint8": 3,
    "int32": 4,
    "int8": 5,
    "int64": 6,
    "bool": 7,
}


def checked(array: Any) -> None:
    """Raises for anything that is not an MXNet array."""
    if not isinstance(array, mx.nd.NDArray):
        raise TypeError(
            f"this is a {type(array).__name__}, not an MXNet array; convert it with mx.nd.array"
        )


def described(array: Any) -> tuple[int, list[int], int]:
    """An array for the native module: handle, shape and MXNet's number of its type."""
    checked(array)
    if array.stype != "default":
        raise ValueError(
            f"this array is stored as `{array.stype}`; make it dense with `.tostype('default')`"
        )
    if array.context.device_type == "gpu":
        raise ValueError(
            f"this release works on CPU arrays only, this one is on {array.context}; copy it with "
            "`.as_in_context(mx.cpu())`"
        )
    return array.handle.value, list(array.shape), number(array)


def number(array: Any) -> int:
    """MXNet's number of the element type."""
    name = np.dtype(array.dtype).name
    if name not in NUMBERS:
        raise ValueError(f"Tensor type {name} is not supported.")
    return NUMBERS[name]


def on_host(array: Any) -> np.ndarray[Any, Any]:
    """Waits for pending writes; returns the array's own memory as a NumPy array."""
    handle, shape, _ = described(array)
    array.wait_to_read()
    dtype = np.dtype(array.dtype)
    length = int(np.prod(shape)) * dtype.itemsize
    if length == 0:
        return np.zeros(shape, dtype)
    start = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(ctypes.c_void_p(handle), ctypes.byref(start)))
    memory = (ctypes.c_ubyte * length).from_address(start.value or 0)
    return np.frombuffer(memory, dtype).reshape(shape)


def from_host(array: np.ndarray[Any, Any], like: Any) -> Any:
    """A new MXNet array."""
    if array.size == 0:
        return mx.nd.empty(array.shape, like.context, like.dtype)
    return mx.nd.array(array, like.context, like.dtype)
