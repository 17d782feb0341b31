"""A gradient tape that reduces gradients over all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.reductions import Average
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.reducer import GradientReducer

__all__ = [
    "DistributedGradientTape",
    "PartialDistributedGradientTape",
]

# The class of the returned tape derives from that of the argument.
_Tape = TypeVar("_Tape")


class _DistributedTape:
    """Mixin for the class of the wrapped tape."""

    _reducer: GradientReducer

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Return the gradients, reduced over all ranks.

        Args:
            target: What to differentiate.
            sources: Variables and tensors to differentiate by, in any structure.
            output_gradients: Gradients of the targets (default: None).
            use_generic_names: Accepted for compatibility with Horovod (default: False).
            unconnected_gradients: What sources without a gradient get (default: None).

        Returns:
            Gradients in the structure of `sources`.
        """
        gradients = super().gradient(  # type: ignore[misc]
            target, sources, output_gradients, unconnected_gradients
        )
        flat = tf.nest.flatten(gradients, expand_composites=False)
        reduced = self._reducer.reduce(flat, tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(gradients, reduced, expand_composites=False)

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error: distributed tapes compute no Jacobians.

        Args:
            *args: Ignored.
            **kwargs: Ignored.

        Returns:
            Nothing.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "a distributed tape does not compute Jacobians; use the original tape, and reduce "
            "them with hvd.allreduce"
        )

    batch_jacobian = jacobian

    def register_local_source(self, source: Any) -> None:
        """Keep the gradient of a variable local to each rank.

        Args:
            source: The variable.
        """
        self._reducer.register_local(source)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Return the gradients, with those of local variables separate.

        Args:
            target: What to differentiate.
            sources: Variables and tensors to differentiate by, in any structure.
            output_gradients: Gradients of the targets (default: None).
            use_generic_names: Accepted for compatibility with Horovod (default: False).

        Returns:
            Pairs of variable and gradient: first those of local variables, then those that were
            reduced.
        """
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
    gradtape: _Tape,
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
) -> _Tape:
    """Wrap a tape so that its gradients are reduced over all ranks.

    The result has everything that `gradtape` has recorded, and two more methods:
    `register_local_source` keeps the gradient of a variable local to each rank, and
    `get_local_and_global_gradients` returns such gradients separately.

    Args:
        gradtape: A `tf.GradientTape`.
        device_dense: Device for dense tensors, such as `/cpu:0` (default: the current device).
        device_sparse: Device for `tf.IndexedSlices` (default: the current device).
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).
        sparse_as_dense: Whether to reduce `tf.IndexedSlices` as dense tensors, which is faster if
            few rows are zero (default: False).
        op: Reduction of the gradients: `hvd.Average` or `hvd.Sum` (default: `hvd.Average`).
        gradient_predivide_factor: Splits the division of an average: gradients are divided by this
            factor before the sum, and by `size / factor` after it (default: 1.0). Only with
            `op=hvd.Average`.
        num_groups: Deprecated, use `groups` (default: 0).
        groups: Variables to reduce together: a number of groups of about equal length, or lists of
            variables; variables in no list are reduced one by one. 0 or None lets the engine decide
            (default: None).
        process_set: Ranks that take part (default: all ranks). On other ranks gradients are not
            changed.
        scale_local_gradients: Whether to divide gradients of variables that are not reduced by the
            number of ranks, as an average would (default: True).

    Returns:
        A tape of a class that derives from that of `gradtape`.

    Raises:
        ValueError: If `gradtape` is not a tape or is already wrapped.

    Example:
        ```python
        import horovod.tensorflow as hvd
        import tensorflow as tf

        hvd.init()
        weights = tf.Variable(tf.ones([3]))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights**2)
        tape = hvd.DistributedGradientTape(tape)
        (gradient,) = tape.gradient(loss, [weights])
        ```
    """
    kind: Any = type(gradtape)
    if not isinstance(gradtape, tf.GradientTape):
        raise ValueError(f"gradtape is {gradtape!r}; pass a tf.GradientTape")
    if isinstance(gradtape, _DistributedTape):
        raise ValueError("this tape already reduces its gradients; it was wrapped before")
    # The attributes include what the tape has recorded and whether it is still recording.
    tape: Any = type(kind.__name__, (_DistributedTape, kind), {"__module__": kind.__module__})
    wrapped: Any = tape.__new__(tape)
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
    distributed: _Tape = wrapped
    return distributed


def PartialDistributedGradientTape(
    gradtape: _Tape,
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
) -> _Tape:
    """Wrap a tape so that the gradients of all but some layers are reduced over all ranks.

    Args:
        gradtape: A `tf.GradientTape`.
        device_dense: Device for dense tensors, such as `/cpu:0` (default: the current device).
        device_sparse: Device for `tf.IndexedSlices` (default: the current device).
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).
        sparse_as_dense: Whether to reduce `tf.IndexedSlices` as dense tensors, which is faster if
            few rows are zero (default: False).
        op: Reduction of the gradients: `hvd.Average` or `hvd.Sum` (default: `hvd.Average`).
        gradient_predivide_factor: Splits the division of an average: gradients are divided by this
            factor before the sum, and by `size / factor` after it (default: 1.0). Only with
            `op=hvd.Average`.
        num_groups: Deprecated, use `groups` (default: 0).
        groups: Variables to reduce together: a number of groups of about equal length, or lists of
            variables; variables in no list are reduced one by one. 0 or None lets the engine decide
            (default: None).
        process_set: Ranks that take part (default: all ranks). On other ranks gradients are not
            changed.
        local_layers: Layer or layers whose gradients stay local to each rank (default: None).
        scale_local_gradients: Whether to divide gradients of variables that are not reduced by the
            number of ranks, as an average would (default: True).

    Returns:
        A tape of a class that derives from that of `gradtape`.

    Raises:
        ValueError: If `gradtape` is not a tape or is already wrapped, or `local_layers` are not
            layers of `tf.keras`.
    """
    tape: Any = DistributedGradientTape(
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
    distributed: _Tape = tape
    return distributed


def local_variables(layers: Any) -> Iterable[Any]:
    """The trainable variables of a layer or a list of layers."""
    if layers is None:
        return []
    if not isinstance(layers, Sequence):
        layers = [layers]
    if not all(isinstance(layer, tf.keras.layers.Layer) for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return [variable for layer in layers for variable in layer.trainable_variables]
