"""A gradient tape whose gradients are those of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.reductions import Average
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.reducer import GradientReducer


class _DistributedTape:
    """Mixed into the class of the tape that is wrapped."""

    _reducer: GradientReducer

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """The gradients of all ranks, for the sources in whatever structure they come."""
        gradients = super().gradient(  # type: ignore[misc]
            target, sources, output_gradients, unconnected_gradients
        )
        flat = tf.nest.flatten(gradients, expand_composites=False)
        reduced = self._reducer.reduce(flat, tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(gradients, reduced, expand_composites=False)

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """Not to be had: it is made of gradients that are computed in a loop of TensorFlow's."""
        raise NotImplementedError(
            "a distributed tape gives no Jacobians; take them from the tape that it was made of, "
            "and reduce them with hvd.allreduce"
        )

    batch_jacobian = jacobian

    def register_local_source(self, source: Any) -> None:
        """The gradient of this variable is not reduced."""
        self._reducer.register_local(source)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """The local variables with their gradients, and the others with the reduced ones."""
        flat = tf.nest.flatten(sources)
        gradients = tf.nest.flatten(
            self.gradient(target, sources, output_gradients, use_generic_names)
        )
        pairs = list(zip(flat, gradients))
        local = [pair for pair in pairs if self._reducer.is_local(pair[0])]
        shared = [pair for pair in pairs if not self._reducer.is_local(pair[0])]
        return local, shared


def is_distributed(tape: Any) -> bool:
    """Whether this is a tape that reduces its gradients."""
    return isinstance(tape, _DistributedTape)


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A tape like `gradtape`, with what it has recorded, whose gradients are those of all ranks."""
    kind = type(gradtape)
    if not isinstance(gradtape, tf.GradientTape):
        raise ValueError(f"gradtape is {gradtape!r}; give a tf.GradientTape")
    if isinstance(gradtape, _DistributedTape):
        raise ValueError("this tape reduces its gradients already; it was wrapped before")
    # What the tape has recorded, and whether it still does, goes along with its attributes.
    tape: Any = type(kind.__name__, (_DistributedTape, kind), {"__module__": kind.__module__})
    wrapped = tape.__new__(tape)
    wrapped.__dict__.update(gradtape.__dict__)
    wrapped._reducer = GradientReducer(
        "DistributedGradientTape",
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        groups if groups is not None else num_groups,
        process_set,
        scale_local_gradients,
    )
    return wrapped


def PartialDistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Such a tape that leaves the gradients of some layers as they are on each rank."""
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for variable in local_variables(local_layers):
        tape.register_local_source(variable)
    return tape


def local_variables(layers: Any) -> Iterable[Any]:
    """The trainable variables of a layer or of a list of them."""
    if layers is None:
        return []
    if not isinstance(layers, Sequence):
        layers = [layers]
    if not all(isinstance(layer, tf.keras.layers.Layer) for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return [variable for layer in layers for variable in layer.trainable_variables]
