"""The variables of models and optimizers, for any version of Keras."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from horovod._keras.backends import is_keras_3


def variables_of(optimizer: Any) -> Iterable[Any]:
    """The variables of an optimizer; Keras 2 has a method for them."""
    found = getattr(optimizer, "variables", None)
    found = found() if callable(found) else found
    return found or []


def value_of(keras: Any, variable: Any) -> Any:
    """A copy of the value of a variable, as an array."""
    return np.array(seen(keras, variable))


def seen(keras: Any, variable: Any) -> Any:
    """The value of a variable, as an array that may share its memory."""
    if is_keras_3(keras):
        return keras.ops.convert_to_numpy(variable)
    return np.asarray(keras.backend.get_value(variable))


def assign(keras: Any, variable: Any, value: Any) -> None:
    """Assigns a value to a variable."""
    if is_keras_3(keras):
        variable.assign(value)
    else:
        keras.backend.set_value(variable, value)


def is_seed(variable: Any) -> bool:
    """Whether it is the state of a random number generator, which is local to each rank."""
    name = str(getattr(variable, "path", None) or getattr(variable, "name", ""))
    return "seed_generator" in name
