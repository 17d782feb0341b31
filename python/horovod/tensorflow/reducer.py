"""Reduces gradients for tapes and optimizers.

Gradients of shared variables are reduced one by one or in groups; those of local variables are left
alone. In a graph each gradient is reduced by its own node as soon as it is computed, while others
are still being computed, and the engine combines what is ready at the same time. Eagerly there is
nothing to overlap with, so all go in one call; also in a program that XLA compiles, because XLA may
run several calls in any order.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod import _native
from horovod.common.compression import checked
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.reductions import Average, Min, predivided
from horovod.common.util import split_list
from horovod.tensorflow import compiled, mpi_ops
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.reductions import allreduce, grouped_allreduce, set_size
from horovod.tensorflow.util import _executing_eagerly, divided, set_id


class GradientReducer:
    """Reduces lists of gradients, all in the same way."""

    def __init__(
        self,
        name: str,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        self.name = name
        self.device_dense = device_dense
        self.device_sparse = device_sparse
        self.compression = checked(compression)
        self.sparse_as_dense = sparse_as_dense
        self.op = op
        self.prescale, self.postscale = predivided(gradient_predivide_factor, op)
        self.groups = checked_groups(groups)
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self.local: set[Any] = set()

    def register_local(self, variable: Any) -> None:
        """The gradient of this variable is not reduced."""
        self.local.add(key_of(variable))

    def is_local(self, variable: Any) -> bool:
        """Whether this variable is local, so that its gradient is not reduced."""
        return bool(self.local) and key_of(variable) in self.local

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any] | None = None) -> list[Any]:
        """The gradients of all ranks; None stays None, and local ones are at most scaled."""
        results = list(gradients)
        variables = list(variables) if variables is not None else [None] * len(results)
        shared = []
        for position, (gradient, variable) in enumerate(zip(results, variables)):
            if gradient is None:
                continue
            if variable is not None and self.is_local(variable):
                if self.scale_local_gradients:
                    results[position] = divided(gradient, set_size(self.process_set))
            else:
                shared.append(position)
        chosen = self._when_many(
            [results[position] for position in shared],
            [variables[position] for position in shared],
        )
        for position, gradient in zip(shared, chosen):
            results[position] = gradient
        return results

    def averaged(
        self, gradients: Sequence[Any], variables: Sequence[Any] | None = None
    ) -> list[Any]:
        """Averages over all ranks, whatever the reduction; local gradients are not changed.

        Gradients that are already reduced, and so the same on all ranks, keep their values.
        """
        again = copy.copy(self)
        again.name = f"{self.name}_again"
        again.op, again.prescale, again.postscale = Average, 1.0, 1.0
        again.scale_local_gradients = False
        return again.reduce(gradients, variables)

    def on_all_ranks(self, truth: Any) -> Any:
        """Whether something is true on every rank."""

        def ask() -> Any:
            number = tf.cast(truth, tf.int32)
            name = f"{self.name}_on_all_ranks"
            least = allreduce(number, op=Min, name=name, process_set=self.process_set)
            return tf.cast(least, tf.bool)

        many = self._are_many()
        if not tf.is_tensor(many):
            return ask() if many else truth
        return tf.cond(many, ask, lambda: truth)

    def _when_many(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """Reduces only if this rank is a member of a set with several ranks."""
        if self.sparse_as_dense:
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        if not gradients:
            return gradients
        many = self._are_many()
        if not tf.is_tensor(many):
            return self._reduce_all(gradients, variables) if many else gradients
        reduced: list[Any] = tf.cond(
            many, lambda: self._reduce_all(gradients, variables), lambda: gradients
        )
        return reduced

    def _are_many(self) -> Any:
        """Whether there are several ranks; in an elastic job this is known only at run time."""
        # Asking for the size raises the right error for a set that is not registered.
        number = set_id(self.process_set)
        if not _native.may_grow():
            return self.process_set.included() and self.process_set.size() != 1
        if compiled.is_compiling():
            # With one rank, the sum is the input; only ranks outside the set differ.
            return self.process_set.included()
        return tf.logical_and(
            mpi_ops.size_op(number) > 1, mpi_ops.process_set_included_op(number) > 0
        )

    def _reduce_all(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        positions = self._grouped(gradients, variables)
        results = list(gradients)
        for number, group in enumerate(positions):
            if len(group) == 1:
                reduced = [self._one(gradients[group[0]], group[0])]
            else:
                reduced = self._many([gradients[position] for position in group], number)
            for position, gradient in zip(group, reduced):
                results[position] = gradient
        return results

    def _grouped(self, gradients: list[Any], variables: list[Any]) -> list[list[int]]:
        everything = list(range(len(gradients)))
        if isinstance(self.groups, int) and self.groups > 0:
            parts = min(self.groups, len(gradients))
            return [list(part) for part in split_list(everything, parts)]
        if isinstance(self.groups, list):
            keys = [None if variable is None else key_of(variable) for variable in variables]
            wanted = [[keys.index(key) for key in group if key in keys] for group in self.groups]
            named = {position for group in wanted for position in group}
            return [group for group in wanted if group] + [
                [position] for position in everything if position not in named
            ]
        if _executing_eagerly() or compiled.is_compiling():
            return [everything]
        return [[position] for position in everything]

    def _one(self, gradient: Any, number: int) -> Any:
        sparse = isinstance(gradient, tf.IndexedSlices)
        return allreduce(
            gradient,
            device_dense=self.device_dense,
            device_sparse=self.device_sparse,
            compression=self.compression,
            op=self.op,
            prescale_factor=1.0 if sparse else self.prescale,
            postscale_factor=1.0 if sparse else self.postscale,
            name=f"{self.name}_grad_{number}",
            process_set=self.process_set,
        )

    def _many(self, gradients: list[Any], number: int) -> list[Any]:
        # Sparse gradients do not support factors, and grouping them gains nothing.
        results = [
            self._one(gradient, position) if isinstance(gradient, tf.IndexedSlices) else gradient
            for position, gradient in enumerate(gradients)
        ]
        dense = [
            position
            for position, gradient in enumerate(gradients)
            if not isinstance(gradient, tf.IndexedSlices)
        ]
        reduced = grouped_allreduce(
            [gradients[position] for position in dense],
            device_dense=self.device_dense,
            compression=self.compression,
            op=self.op,
            prescale_factor=self.prescale,
            postscale_factor=self.postscale,
            process_set=self.process_set,
            name=f"{self.name}_group_{number}",
        )
        for position, gradient in zip(dense, reduced):
            results[position] = gradient
        return results


def checked_groups(groups: Any) -> Any:
    """Groups as keys of variables, or their number; none for no groups."""
    if groups is None:
        return None
    if isinstance(groups, int) and groups >= 0:
        return groups or None
    if isinstance(groups, (list, tuple)) and all(isinstance(g, (list, tuple)) for g in groups):
        return [[key_of(variable) for variable in group] for group in groups]
    raise ValueError("groups should be a non-negative integer or a list of list of tf.Variable.")


def key_of(variable: Any) -> Any:
    """A key for a variable; a Keras 3 variable wraps a TensorFlow one."""
    inner = getattr(variable, "value", None)
    inner = variable if callable(inner) or inner is None else inner
    return inner.ref() if hasattr(inner, "ref") else id(inner)
