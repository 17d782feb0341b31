"""Mixed precision: `LossScaleOptimizer` around an optimizer that reduces gradients, or within.

It skips a step whose gradients are not finite, and looks at those of its own rank. Keras 2 lets the
optimizer within reduce them before. Keras 3 does not: one rank would skip, and the others wait for
its gradients. Here its check is made one of all ranks. `Model.compile` puts such an optimizer
around the model's by itself, so there is no other place for it.
"""

from __future__ import annotations

from typing import Any

from horovod._keras.backends import is_keras_3

_MARK = "_hvd_asks_all_ranks"


def scales(optimizer: Any) -> bool:
    """Whether this optimizer hands gradients to another one within."""
    return hasattr(optimizer, "inner_optimizer")


def prepare(keras: Any) -> None:
    """Lets Keras 3 ask all ranks whether gradients are finite, where they reduce them."""
    if not is_keras_3(keras):
        return
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
