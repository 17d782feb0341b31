"""Mixed precision: `LossScaleOptimizer` around, or inside, an optimizer that reduces gradients.

It skips a step whose gradients are not finite, and checks only those of its own rank. Keras 2 lets
the inner optimizer reduce them first; gradients derived from reduced ones must not be reduced
again. Keras 3 does not: one rank would skip the step, and the others would wait for its gradients.
So the check is made over all ranks. `Model.compile` wraps the model's optimizer by itself, so the
class of Keras has to be changed.
"""

from __future__ import annotations

from typing import Any

from horovod._keras.backends import is_keras_3

_MARK = "_hvd_knows_this"


def scales(optimizer: Any) -> bool:
    """Whether this optimizer passes gradients to an inner optimizer."""
    return hasattr(optimizer, "inner_optimizer")


def prepare(keras: Any) -> None:
    """Patches the class of Keras so that it works with an inner optimizer that reduces."""
    if is_keras_3(keras):
        _ask_all_ranks(keras)
    else:
        # Keras 2 has one for each kind of optimizer.
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
