"""Plays XLA on a stand-in GPU: calls our handlers through the structures of its C interface.

A rank of a job imports this. The driver is the library that `RONDE_CUDA` names, which the native
module opens too.
"""

import ctypes
import os
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_void_p, cast

import numpy as np

from horovod import _native

# Numbers of XLA's element types, and of the kinds of attributes.
ELEMENTS = {"int32": 4, "uint32": 8, "float16": 10, "float32": 11, "complex64": 15}
SCALAR, STRING, INTEGER, FLOAT = 3, 4, 5, 12
EXECUTE = 3
NOT_READY = 600


class Buffer(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extensions", c_void_p),
        ("kind", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dimensions", POINTER(c_int64)),
    ]


class Buffers(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extensions", c_void_p),
        ("count", c_int64),
        ("kinds", c_void_p),
        ("buffers", POINTER(POINTER(Buffer))),
    ]


class Text(ctypes.Structure):
    _fields_ = [("start", c_char_p), ("length", c_size_t)]


class Scalar(ctypes.Structure):
    _fields_ = [("kind", c_int), ("value", c_void_p)]


class Attributes(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extensions", c_void_p),
        ("count", c_int64),
        ("kinds", POINTER(c_int)),
        ("names", POINTER(POINTER(Text))),
        ("values", POINTER(c_void_p)),
    ]


class Frame(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extensions", c_void_p),
        ("api", c_void_p),
        ("context", c_void_p),
        ("stage", c_int),
        ("operands", Buffers),
        ("results", Buffers),
        ("attributes", Attributes),
        ("future", c_void_p),
    ]


class ErrorArguments(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extensions", c_void_p),
        ("message", c_char_p),
        ("code", c_int),
    ]


class StreamArguments(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extensions", c_void_p),
        ("context", c_void_p),
        ("stream", c_void_p),
    ]


class Api(ctypes.Structure):
    """The table of JAX 0.4.31, which ends with the function that returns the stream."""

    _fields_ = [
        ("size", c_size_t),
        ("extensions", c_void_p),
        ("version_size", c_size_t),
        ("version_extensions", c_void_p),
        ("major", c_int),
        ("minor", c_int),
        ("internal", c_void_p),
        ("error_create", CFUNCTYPE(c_void_p, POINTER(ErrorArguments))),
        ("error_message", c_void_p),
        ("error_destroy", c_void_p),
        ("handler_register", c_void_p),
        ("stream_get", CFUNCTYPE(c_void_p, POINTER(StreamArguments))),
    ]


class XlaError(Exception):
    """What a handler returned."""


class Gpu:
    """A GPU of the stand-in, with the stream that programs run on."""

    def __init__(self, index):
        self.driver = ctypes.CDLL(os.environ["RONDE_CUDA"])
        self._check("cuInit", 0)
        self._context = c_void_p()
        self._check("cuDevicePrimaryCtxRetain", byref(self._context), index)
        self.enter()
        self.stream = self.new_stream()

    def enter(self):
        """Makes it the GPU of this thread."""
        self._check("cuCtxSetCurrent", self._context)

    def new_stream(self):
        stream = c_void_p()
        self._check("cuStreamCreateWithPriority", byref(stream), 1, 0)
        return stream

    def configure(self, text):
        """Tells the stand-in what to do from now on."""
        self.driver.ronde_standin_configure(text.encode())

    def array(self, values):
        """An array that the stream fills, later."""
        values = np.ascontiguousarray(values)
        array = self.empty(values.shape, values.dtype)
        array.source = values
        if values.size:
            start = c_void_p(values.ctypes.data)
            size = c_size_t(values.nbytes)
            self._check("cuMemcpyHtoDAsync_v2", array.address, start, size, self.stream)
        return array

    def empty(self, shape, dtype):
        """An array with undefined elements; XLA has no address for one without elements."""
        array = Array(tuple(shape), np.dtype(dtype))
        if array.bytes:
            self._check("cuMemAlloc_v2", byref(array.address), c_size_t(array.bytes))
        return array

    def read(self, array):
        """What the stream reads, behind everything enqueued so far."""
        values = np.full(array.shape, 77, array.dtype)
        start = c_void_p(values.ctypes.data)
        if array.bytes:
            size = c_size_t(array.bytes)
            self._check("cuMemcpyDtoHAsync_v2", start, array.address, size, self.stream)
        self._check("cuStreamSynchronize", self.stream)
        return values

    def is_busy(self):
        """Whether the stream has something left to do."""
        return self.driver.cuStreamQuery(self.stream) == NOT_READY

    def close_gate(self):
        """Stops the stream where it is now; returns a function that lets it go on."""
        gate, event = self.new_stream(), c_void_p()
        self.configure("hang=cuMemsetD8Async:1")
        address = self.empty((1,), "int32").address
        self._check("cuMemsetD8Async", address, 0, c_size_t(4), gate)
        self._check("cuEventCreate", byref(event), 0)
        self._check("cuEventRecord", event, gate)
        self._check("cuStreamWaitEvent", self.stream, event, 0)
        return lambda: self._check("cuStreamDestroy_v2", gate)

    def _check(self, name, *arguments):
        status = getattr(self.driver, name)(*arguments)
        assert status == 0, f"{name} returned {status}"


class Array:
    """An operand or a result of a program."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype, self.address, self.source = shape, dtype, c_void_p(), None
        self.bytes = int(np.prod(shape)) * dtype.itemsize

    @classmethod
    def on_host(cls, values):
        array = cls(values.shape, values.dtype)
        array.address, array.source = c_void_p(values.ctypes.data), values
        return array


class Xla:
    """The part of XLA that calls handlers."""

    def __init__(self, stream=None):
        self._errors = []
        self._stream = stream
        create = Api._fields_[7][1](self._create)
        get = Api._fields_[11][1](self._get_stream)
        none = None
        self._api = Api(88, none, 24, none, 0, 0, none, create, none, none, none, get)

    def _create(self, arguments):
        self._errors.append((arguments.contents.code, arguments.contents.message.decode()))
        return len(self._errors)

    def _get_stream(self, arguments):
        if self._stream is None:
            self._errors.append((12, "there is no stream"))
            return len(self._errors)
        arguments.contents.stream = self._stream
        return 0

    def call(self, platform, collective, operands, results, **attributes):
        """Calls a handler as a running program does."""
        capsule = _native.xla_handlers(platform)[f"ronde_{collective}"]
        point = ctypes.pythonapi.PyCapsule_GetPointer
        point.restype, point.argtypes = c_void_p, [ctypes.py_object, c_char_p]
        # Releases the interpreter lock, as JAX does.
        handler = CFUNCTYPE(c_void_p, POINTER(Frame))(point(capsule, None))
        kept = []
        frame = Frame(
            ctypes.sizeof(Frame),
            None,
            cast(byref(self._api), c_void_p),
            None,
            EXECUTE,
            _buffers(operands, kept),
            _buffers(results, kept),
            _attributes({"set": 0, "tokens": 0, **attributes}, kept),
            None,
        )
        error = handler(byref(frame))
        if error:
            raise XlaError(*self._errors[error - 1])


def _buffers(arrays, kept):
    each = []
    for array in arrays:
        dimensions = (c_int64 * max(len(array.shape), 1))(*array.shape)
        kind, start = ELEMENTS[array.dtype.name], array.address
        size = ctypes.sizeof(Buffer)
        each.append(Buffer(size, None, kind, start, len(array.shape), dimensions))
        kept.append(dimensions)
    pointers = (POINTER(Buffer) * max(len(each), 1))(*map(ctypes.pointer, each))
    kept.append(pointers)
    return Buffers(ctypes.sizeof(Buffers), None, len(each), None, pointers)


def _attributes(attributes, kept):
    kinds, names, values = [], [], []
    for name, value in sorted(attributes.items()):
        names.append(Text(name.encode(), len(name)))
        if isinstance(value, str):
            kinds.append(STRING)
            values.append(Text(value.encode(), len(value)))
            continue
        number = c_int64(value) if isinstance(value, int) else ctypes.c_double(value)
        kept.append(number)
        kinds.append(SCALAR)
        kind = INTEGER if isinstance(value, int) else FLOAT
        values.append(Scalar(kind, cast(byref(number), c_void_p)))
    count = len(kinds)
    pointers = (POINTER(Text) * count)(*map(ctypes.pointer, names))
    addresses = (c_void_p * count)(*(cast(byref(value), c_void_p) for value in values))
    kinds = (c_int * count)(*kinds)
    kept += [names, values, pointers, addresses, kinds]
    return Attributes(ctypes.sizeof(Attributes), None, count, kinds, pointers, addresses)
