"""The collectives in functions that XLA compiles: `tf.function(jit_compile=True)`.

XLA has no kernels for our ops. It calls the same native handlers as JAX programs: a collective
becomes a small StableHLO module with one such call in it. A compiled program has fixed shapes, so
every rank must contribute the same number of rows to an allgather.

A small program runs one call at a time, in an order that XLA chooses, and two ranks whose programs
differ slightly would wait for each other. So every call passes a token to the next one, which fixes
the order to that in which the function was traced.
"""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from horovod import _native
from horovod.common.basics import _basics
from horovod.common.calls import Call
from horovod.common.reductions import Average

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_./]")
# The newest version of the node that all releases with handlers have.
_MODULE_VERSION = 9
_tokens: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_ELEMENTS = {
    tf.bool: "i1",
    tf.int8: "i8",
    tf.int16: "i16",
    tf.int32: "i32",
    tf.int64: "i64",
    tf.uint8: "ui8",
    tf.uint16: "ui16",
    tf.uint32: "ui32",
    tf.uint64: "ui64",
    tf.half: "f16",
    tf.bfloat16: "bf16",
    tf.float32: "f32",
    tf.float64: "f64",
}


def is_compiling() -> bool:
    """Whether XLA will compile the function that is being traced."""
    if tf.executing_eagerly():
        return False
    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:
        # TensorFlow itself will report that XLA has no kernel for the op.
        return False
    return bool(GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def run(call: Call, tensors: Sequence[Any]) -> list[Any]:
    """Runs a collective, which can be differentiated, in the function that is being traced."""
    _check()
    unique = tf.compat.v1.get_default_graph().unique_name(call.name)
    return _differentiable(dataclasses.replace(call, name=unique), tensors)


def refuse(kind: str, reason: str = "") -> None:
    """Raises an error for a collective that compiled functions do not support."""
    if is_compiling():
        raise NotImplementedError(
            f"{kind} cannot be compiled by XLA{reason}: set jit_compile=False, or keep it outside "
            "of the compiled function"
        )


def _check() -> None:
    problem = _native.tensorflow_xla_problem()
    if problem is None and tf.config.get_visible_devices("GPU"):
        problem = "its XLA compiles for the GPU, and there are only handlers for CPUs"
    if problem is not None:
        raise NotImplementedError(
            f"collectives cannot be compiled by XLA with TensorFlow {tf.__version__} here, because "
            f"{problem}: set jit_compile=False, or keep the collectives outside the compiled "
            "function"
        )


def _differentiable(call: Call, tensors: Sequence[Any]) -> list[Any]:
    def collective(*operands: Any) -> Any:
        def gradient(*gradients: Any) -> list[Any]:
            rows = [operand.shape[0] if operand.shape.rank else 0 for operand in operands]
            return _GRADIENTS[call.kind](call, list(gradients), rows)

        return tuple(_emit(call, operands)), gradient

    return list(tf.custom_gradient(collective)(*tensors))


def _backward(call: Call, kind: str, **changes: Any) -> Call:
    """The collective of the backward pass."""
    return dataclasses.replace(call, kind=kind, name=f"{call.name}.back", **changes)


def _of_allreduce(call: Call, gradients: list[Any], _: list[int]) -> list[Any]:
    return _differentiable(_backward(call, "allreduce"), gradients)


def _of_allgather(call: Call, gradients: list[Any], rows: list[int]) -> list[Any]:
    means = _means(call, gradients)
    place = call.place()
    return [mean[place * count : (place + 1) * count] for mean, count in zip(means, rows)]


def _of_broadcast(call: Call, gradients: list[Any], _: list[int]) -> list[Any]:
    means = _means(call, gradients)
    is_root = _basics.rank() == call.root
    return means if is_root else [tf.zeros_like(mean) for mean in means]


def _of_alltoall(call: Call, gradients: list[Any], _: list[int]) -> list[Any]:
    return _differentiable(_backward(call, "alltoall"), gradients)


def _of_reducescatter(call: Call, gradients: list[Any], rows: list[int]) -> list[Any]:
    members = call.members()
    if any(count % members for count in rows):
        raise NotImplementedError(
            f"the gradient of a reducescatter of {rows} rows over {members} ranks cannot be "
            "compiled by XLA: pass a multiple of that number, or set jit_compile=False"
        )
    factor = call.prescale * call.postscale * (1 if call.op == Average else members)
    scaled = [gradient * tf.cast(factor, gradient.dtype) for gradient in gradients]
    return _differentiable(_backward(call, "allgather", prescale=1.0, postscale=1.0), scaled)


def _means(call: Call, gradients: list[Any]) -> list[Any]:
    back = _backward(call, "allreduce", op=Average, prescale=1.0, postscale=1.0)
    return _differentiable(back, gradients)


_GRADIENTS = {
    "allgather": _of_allgather,
    "allreduce": _of_allreduce,
    "alltoall": _of_alltoall,
    "broadcast": _of_broadcast,
    "reducescatter": _of_reducescatter,
}


def _emit(call: Call, operands: Sequence[Any]) -> list[Any]:
    from tensorflow.compiler.tf2xla.python import xla

    given = [_static(call, operand) for operand in operands]
    shapes = [*(call.result(shape) for shape in given), []]
    types = [*(operand.dtype for operand in operands), tf.int32]
    given.append([])
    graph = tf.compat.v1.get_default_graph()
    token = _tokens.get(graph)
    results = xla.call_module(
        [*operands, tf.zeros([], tf.int32) if token is None else token],
        version=_MODULE_VERSION,
        module=_module(call, given, shapes, types),
        Tout=types,
        Sout=shapes,
        platforms=["CPU"],
    )
    _tokens[graph] = results[-1]
    return list(results[:-1])


def _static(call: Call, operand: Any) -> list[int]:
    if not operand.shape.is_fully_defined():
        raise ValueError(
            f"the {call.kind} `{call.name}` of a tensor of shape {operand.shape} cannot be "
            "compiled by XLA, because the full shape must be known when the function is traced: "
            "use tf.ensure_shape or an input_signature, or set jit_compile=False"
        )
    shape: list[int] = operand.shape.as_list()
    return shape


def _module(call: Call, given: list[list[int]], shapes: list[list[int]], types: list[Any]) -> str:
    """The module as text: a function that calls the handler with all operands."""
    operands = [_type(shape, dtype) for shape, dtype in zip(given, types)]
    results = ", ".join(_type(shape, dtype) for shape, dtype in zip(shapes, types))
    count = range(len(types))
    parameters = ", ".join(f"%a{number}: {operands[number]}" for number in count)
    layouts = ", ".join(_layout(len(shape)) for shape in given)
    return f"""
module @collective {{
  func.func public @main({parameters}) -> ({results}) {{
    %r:{len(types)} = "stablehlo.custom_call"({", ".join(f"%a{number}" for number in count)}) {{
      call_target_name = "ronde_{call.kind}", has_side_effect = true, api_version = 4 : i32,
      operand_layouts = [{layouts}], result_layouts = [{layouts}],
      backend_config = {{{_attributes(call)}}}
    }} : ({", ".join(operands)}) -> ({results})
    func.return {", ".join(f"%r#{number}" for number in count)} : {results}
  }}
}}"""


def _attributes(call: Call) -> str:
    def real(number: float) -> str:
        return f"0x{struct.pack('>d', number).hex().upper()} : f64"

    def text(value: Any) -> str:
        if isinstance(value, str):
            return f'"{_NOT_IN_NAMES.sub("_", value)}"'
        return real(value) if isinstance(value, float) else f"{value} : i64"

    told = {**call.attributes(), "tokens": 1}
    return ", ".join(f"{name} = {text(value)}" for name, value in told.items())


def _type(shape: list[int], dtype: Any) -> str:
    element = _ELEMENTS.get(dtype)
    if element is None:
        raise ValueError(f"tensors of type {dtype.name} are not supported in compiled functions")
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"


def _layout(rank: int) -> str:
    """Row-major layout, whatever XLA would prefer."""
    order = ", ".join(str(axis) for axis in reversed(range(rank)))
    return f"dense<[{order}]> : tensor<{rank}xindex>" if rank else "dense<> : tensor<0xindex>"
