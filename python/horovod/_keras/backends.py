"""Reducing lists of gradients in the backend that Keras runs on.

TensorFlow reduces in its graph (`horovod.tensorflow.reducer`); on torch and JAX all gradients of a
list are reduced in one call.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from horovod.common.compression import checked
from horovod.common.process_sets import ProcessSet
from horovod.common.reductions import Average, Min, Sum, predivided

BACKENDS = ("tensorflow", "jax", "torch")


def backend_of(keras: Any) -> str:
    """The name of the backend; Keras 2 supports only TensorFlow."""
    if not is_keras_3(keras):
        return "tensorflow"
    backend = str(keras.backend.backend())
    if backend not in BACKENDS:
        raise ImportError(
            f"Keras uses the backend `{backend}`, but gradients can be reduced only on "
            f"{', '.join(BACKENDS)}; choose one of them with KERAS_BACKEND",
            name="keras",
        )
    return backend


def is_keras_3(keras: Any) -> bool:
    """Whether this is Keras 3 or newer."""
    # Not every module that provides Keras 2 has a version.
    return hasattr(keras, "ops")


class GroupReducer:
    """Reduces lists of torch or JAX gradients, as `GradientReducer` does for TensorFlow."""

    def __init__(
        self,
        keras: Any,
        compression: Any,
        op: int,
        gradient_predivide_factor: float,
        process_set: ProcessSet,
        scale_local_gradients: bool,
    ) -> None:
        self._keras = keras
        self._hvd: Any = importlib.import_module(f"horovod.{backend_of(keras)}")
        self._compression = checked(compression)
        self._op = op
        self._factor = gradient_predivide_factor
        self._process_set = process_set
        self._scale = scale_local_gradients
        self._local: set[int] = set()

    def register_local(self, variable: Any) -> None:
        """Excludes the gradient of this variable from reduction."""
        self._local.add(id(variable))

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any] | None = None) -> list[Any]:
        """Reduces gradients; None stays None, and local gradients are at most scaled."""
        results = list(gradients)
        variables = list(variables) if variables is not None else [None] * len(results)
        size = self._process_set.size()
        if not self._process_set.included() or size == 1:
            return results
        shared = []
        for position, (gradient, variable) in enumerate(zip(results, variables)):
            if gradient is None:
                continue
            if id(variable) in self._local:
                results[position] = gradient / size if self._scale else gradient
            else:
                shared.append(position)
        if not shared:
            return results
        small = [self._compression.compress(results[position]) for position in shared]
        reduced = self._hvd.grouped_allreduce(
            [tensor for tensor, _ in small],
            op=self._op,
            prescale_factor=1.0 / self._factor,
            postscale_factor=self._factor,
            process_set=self._process_set,
        )
        for position, tensor, (_, context) in zip(shared, reduced, small):
            results[position] = self._compression.decompress(tensor, context)
        return results

    def on_all_ranks(self, truth: Any) -> Any:
        """Whether something is true on every rank."""
        if not self._process_set.included() or self._process_set.size() == 1:
            return truth
        number = self._keras.ops.cast(truth, "float32")
        least = self._hvd.allreduce(number, op=Min, process_set=self._process_set)
        return self._keras.ops.cast(least, "bool")


def make_reducer(
    keras: Any,
    name: str,
    op: int,
    gradient_predivide_factor: float,
    process_set: ProcessSet,
    scale_local_gradients: bool,
    **options: Any,
) -> Any:
    """Creates the reducer for the backend of this Keras.

    `options` are those for compression, devices, groups and sparse gradients; all but compression
    apply to TensorFlow only.
    """
    if op not in (Average, Sum):
        raise ValueError("op currently only supports Average and Sum")
    predivided(gradient_predivide_factor, op)
    if backend_of(keras) == "tensorflow":
        from horovod.tensorflow.reducer import GradientReducer

        return GradientReducer(
            name,
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
            **options,
        )
    return GroupReducer(
        keras,
        options["compression"],
        op,
        gradient_predivide_factor,
        process_set,
        scale_local_gradients,
    )
