"""Keras optimizers that reduce gradients over all ranks.

The class derives from the class of the wrapped optimizer and has its name and module, so that a
saved model contains the plain optimizer and loads without this package. Keras 3 always calls
`apply`, so gradients are reduced there. Keras 2 has many entry points: gradients are reduced when
they are computed, aggregated or applied, whichever comes first, and only once.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, TypeVar

from horovod._keras import loss_scale
from horovod._keras.backends import backend_of, is_keras_3, make_reducer
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.reductions import Average

_Optimizer = TypeVar("_Optimizer")


class Settings:
    """How an optimizer reduces; an attribute of its class."""

    def __init__(self, reducer: Any, aggregation: Any) -> None:
        self.reducer = reducer
        self.aggregation = aggregation
        # Gradients that have been reduced, as long as anything refers to them.
        self._reduced: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        # Whether the program has requested reduced gradients that it has not applied yet.
        self._asked = False

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduces gradients to apply."""
        if self.aggregation is not None:
            return list(self.aggregation.compute_gradients(gradients, variables))
        return list(self.reducer.reduce(gradients, variables))

    def reduce_for_program(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduces gradients for a program that will apply them later, perhaps modified."""
        reduced = self._reduce_once(gradients, variables, may_be_reduced=False)
        self._asked = True
        return reduced

    def reduce_to_apply(
        self, gradients: Sequence[Any], variables: Sequence[Any], is_told_reduced: bool
    ) -> list[Any]:
        """Reduces gradients to apply, some or all of which may have been reduced before."""
        reduced = self._reduce_once(gradients, variables, is_told_reduced or self._asked)
        self._asked = False
        return reduced

    def has_reduced(self, gradients: Sequence[Any]) -> bool:
        """Whether all of these are known to be reduced."""
        known = self._reduced
        return all(each is None or known.get(id(each)) is each for each in gradients)

    def remember(self, gradients: Sequence[Any]) -> None:
        """Records that these gradients are reduced."""
        self._reduced.update({id(each): each for each in gradients if each is not None})

    def _reduce_once(
        self, gradients: Sequence[Any], variables: Sequence[Any], may_be_reduced: bool
    ) -> list[Any]:
        if self.has_reduced(gradients):
            return list(gradients)
        # Gradients that a program has changed, or claims to have reduced, cannot be distinguished
        # from those of this rank only. Averaging leaves the former unchanged, and keeps the ranks
        # in sync in any case.
        reduced = (
            self.reducer.averaged(gradients, variables)
            if may_be_reduced
            else self.reduce(gradients, variables)
        )
        self.remember(reduced)
        return reduced

    def is_pass(self) -> bool:
        """Whether `reduce` may only have accumulated the gradients."""
        return self.aggregation is not None and self.aggregation.has_decided


class _Distributed:
    """The methods that both kinds of optimizers get."""

    _hvd: Settings

    @property
    def _agg_helper(self) -> Any:
        return self._hvd.aggregation

    def register_local_var(self, var: Any) -> None:
        """Keep the gradient of a variable local to each rank.

        Args:
            var: The variable.
        """
        self._hvd.reducer.register_local(var)


class _Keras3(_Distributed):
    """Mixin for the class of a Keras 3 optimizer."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduces and applies gradients."""
        grads = list(grads)
        above: Any = super()
        if not grads:
            return above.apply(grads, trainable_variables)
        known: Any = self
        variables = trainable_variables if trainable_variables is not None else _tracked(known)
        variables = list(variables)
        reduced = self._hvd.reduce(grads, variables)
        if self._hvd.aggregation is None:
            return above.apply(reduced, trainable_variables)
        if not known.built:
            known.build(variables)
        return _every_nth(known, lambda: above.apply(reduced, variables))

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        """The same as a pure function of all variables, as JAX needs it."""
        above: Any = super()
        if loss_scale.scales(self):
            # It passes gradients to the inner optimizer without calling `apply`.
            grads = self._hvd.reduce(list(grads), _tracked(self))
        return above.stateless_apply(optimizer_variables, grads, trainable_variables)

    @property
    def variables(self) -> Any:
        """The variables of the optimizer; programs for Keras 2 call this as a method."""
        return _Callable(super().variables)  # type: ignore[misc]


class _Keras2(_Distributed):
    """Mixin for the class of a Keras 2 optimizer."""

    def compute_gradients(self, loss: Any, var_list: Any, *args: Any, **kwargs: Any) -> Any:
        """The gradients of all ranks, with their variables."""
        above: Any = super()
        compute = getattr(above, "compute_gradients", None) or above._compute_gradients
        return self._computed(compute(loss, var_list, *args, **kwargs), args, kwargs)

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> Any:
        above: Any = super()
        # The name in older optimizers, and in all of Horovod's.
        compute = getattr(above, "_compute_gradients", None)
        if compute is not None:
            pairs = compute(loss, var_list, grad_loss, tape=tape)
        elif grad_loss is None:
            pairs = above.compute_gradients(loss, var_list, tape=tape)
        else:
            raise ValueError(
                f"{type(self).__name__} of this Keras does not take grad_loss; pass it to the "
                "tape: tape.gradient(loss, variables, output_gradients=grad_loss)"
            )
        return self._computed(pairs, (tape,), {})

    def get_gradients(self, loss: Any, params: Any) -> Any:
        """The gradients of all ranks in a graph of TensorFlow 1."""
        import tensorflow as tf

        above: Any = super()
        # Newer Keras 2 optimizers do not have it, but Horovod's do.
        compute = getattr(above, "get_gradients", tf.compat.v1.gradients)
        return self._hvd.reduce_for_program(compute(loss, params), tf.nest.flatten(params))

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        """The gradients of all ranks, with their variables."""
        pairs = list(grads_and_vars)
        if not pairs:
            return pairs
        gradients, variables = zip(*pairs)
        return list(zip(self._hvd.reduce_for_program(gradients, variables), variables))

    # The name in older optimizers.
    _aggregate_gradients = aggregate_gradients

    def _computed(self, pairs: Any, args: Any, kwargs: Any) -> Any:
        from horovod.tensorflow.tape import is_distributed as reduces

        pairs = list(pairs)
        if any(reduces(tape) for tape in (*args, *kwargs.values())):
            self._hvd.remember([gradient for gradient, _ in pairs])
        return self.aggregate_gradients(pairs)

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies gradients, after reducing those that are not yet reduced."""
        above: Any = super()
        done = kwargs.pop("skip_gradients_aggregation", False)
        done = not kwargs.pop("experimental_aggregate_gradients", True) or done
        pairs = list(grads_and_vars)
        if pairs:
            gradients, variables = zip(*pairs)
            pairs = list(zip(self._hvd.reduce_to_apply(gradients, variables, done), variables))
        # Every Keras 2 optimizer accepts this argument.
        kwargs["experimental_aggregate_gradients"] = False
        if not pairs or not self._hvd.is_pass():
            return above.apply_gradients(pairs, *args, **kwargs)
        build: Any = getattr(self, "build", None)
        if build is not None:
            import tensorflow as tf

            with tf.init_scope():
                build([variable for _, variable in pairs])
        _every_nth(self, lambda: above.apply_gradients(pairs, *args, **kwargs))
        return self.iterations  # type: ignore[attr-defined]


class _Callable(list[Any]):
    """A list that returns itself when it is called."""

    def __call__(self) -> list[Any]:
        return self


def _tracked(optimizer: Any) -> Any:
    return optimizer._trainable_variables


def _every_nth(optimizer: Any, apply: Any) -> Any:
    import tensorflow as tf

    def applied() -> Any:
        apply()
        return tf.constant(1)

    def counted() -> Any:
        # A pass counts for learning rate schedules whether it is applied or not.
        optimizer.iterations.assign_add(1)
        return tf.constant(0)

    return optimizer._hvd.aggregation.apply_gradients(applied, counted)


def distributed_class(keras: Any, kind: type) -> type:
    """Derives a class from `kind` whose instances reduce gradients."""
    mixin = _Keras3 if is_keras_3(keras) else _Keras2
    loss_scale.prepare(keras)
    body = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (mixin, kind), body)


def is_distributed(optimizer: Any) -> bool:
    """Whether an optimizer reduces gradients."""
    return isinstance(optimizer, _Distributed)


def make_settings(
    keras: Any,
    name: str,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Settings:
    """Creates the settings of an optimizer from user arguments."""
    reducer = make_reducer(
        keras,
        name,
        op,
        gradient_predivide_factor,
        process_set,
        scale_local_gradients,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        groups=groups,
    )
    if backward_passes_per_step == 1:
        return Settings(reducer, None)
    if backend_of(keras) != "tensorflow":
        raise NotImplementedError(
            f"backward_passes_per_step > 1 needs Keras's TensorFlow backend, and this is "
            f"{backend_of(keras)}; use the optimizer's own gradient_accumulation_steps"
        )
    from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper

    aggregation = LocalGradientAggregationHelper(
        backward_passes_per_step, reducer.reduce, sparse_as_dense, average_aggregated_gradients
    )
    return Settings(reducer, aggregation)


def create_distributed_optimizer(
    keras: Any, optimizer: _Optimizer, name: str | None = None, **options: Any
) -> _Optimizer:
    """A new optimizer with the configuration of `optimizer` that reduces gradients."""
    if is_distributed(optimizer):
        raise ValueError("this optimizer already reduces its gradients; it was wrapped before")
    if not (hasattr(optimizer, "get_config") and hasattr(type(optimizer), "from_config")):
        raise ValueError(
            f"{optimizer!r} is not an optimizer of {keras.__name__}; give an instance, such as "
            "keras.optimizers.SGD(0.1)"
        )
    kind = distributed_class(keras, type(optimizer))
    wrapped: _Optimizer = kind.from_config(optimizer.get_config())  # type: ignore[attr-defined]
    own_name = name or f"Distributed{type(optimizer).__name__}"
    object.__setattr__(wrapped, "_hvd", make_settings(keras, own_name, **options))
    return wrapped


def distribute_in_place(keras: Any, optimizer: Any, **options: Any) -> None:
    """Makes an optimizer reduce gradients; it keeps its state."""
    if optimizer is None or is_distributed(optimizer):
        return
    settings = make_settings(keras, f"Distributed{type(optimizer).__name__}", **options)
    optimizer.__class__ = distributed_class(keras, type(optimizer))
    object.__setattr__(optimizer, "_hvd", settings)


def load_model(
    keras: Any,
    filepath: Any,
    custom_optimizers: Any,
    custom_objects: Any,
    compression: Any,
) -> Any:
    """Loads a saved model and makes its optimizer reduce gradients."""
    objects = {kind.__name__: kind for kind in custom_optimizers or []}
    objects.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects)
    distribute_in_place(keras, getattr(model, "optimizer", None), compression=compression)
    return model
