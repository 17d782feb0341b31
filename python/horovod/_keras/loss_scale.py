"""Mixed precision: `LossScaleOptimizer` around an optimizer that reduces gradients, or within.

It skips a step whose gradients are not finite, and looks at those of its own rank. Keras 2 lets the
optimizer within reduce them before; what it makes of reduced gradients must not be reduced again.
Keras 3 does not: one rank would skip, and the others wait for its gradients. Here its check is
made one of all ranks. `Model.compile` puts such an optimizer around the model's by itself, so there
is no other place for it.
"""

from __future__ import annotations

from typing import Any

from horovod._keras.backends import is_keras_3

_MARK = "_hvd_knows_this"


def scales(optimizer: Any) -> bool:
    """Whether this optimizer hands gradients to another one within."""
    return hasattr(optimizer, "inner_optimizer")


def prepare(keras: Any) -> None:
    """Changes the class of Keras so that it works with an optimizer within that reduces."""
    if is_keras_3(keras):
        _ask_all_ranks(keras)
    else:
        # One for each kind of optimizer that there is in Keras 2.
        for kind in keras.mixed_precision.LossScaleOptimizer.__subclasses__():
            _remember_unscaled(kind)


def _ask_all_ranks(keras: Any) -> None:
    kind: Any = keras.optimizers.LossScaleOptimizer
    alone: Any = getattr(kind, "check_finite", None)
    if alone is None or hasattr(alone, _MARK):
        return

    def check_finite(self: Any, grads: Any) -> Any:
        finite = alone(self, grads)
        settings = getattr(self.inner_optimizer, "_hvd", None)
        if settings is None:
            return finite
        return settings.reducer.on_all_ranks(finite)

    setattr(check_finite, _MARK, True)
    kind.check_finite = check_finite


def _remember_unscaled(kind: Any) -> None:
    plain: Any = vars(kind).get("get_unscaled_gradients")
    if plain is None or hasattr(plain, _MARK):
        return

    def get_unscaled_gradients(self: Any, grads: Any) -> Any:
        grads = list(grads)
        unscaled = plain(self, grads)
        settings = getattr(self.inner_optimizer, "_hvd", None)
        if settings is not None and settings.has_reduced(grads):
            settings.remember(unscaled)
        return unscaled

    setattr(get_unscaled_gradients, _MARK, True)
    kind.get_unscaled_gradients = get_unscaled_gradients
