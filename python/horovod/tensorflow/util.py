"""Small functions that the modules of this package share; some names are Horovod's."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, registered_id

__all__ = [
    "refs_to_vars",
    "vars_to_refs",
]

_COMPOSITE = (tf.SparseTensor, tf.RaggedTensor)
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")


def has_gpu() -> bool:
    """Whether TensorFlow finds a GPU."""
    return bool(tf.config.list_physical_devices("GPU"))


def _executing_eagerly() -> bool:
    """Whether ops run eagerly."""
    return bool(tf.executing_eagerly())


def _make_subgraph(function: Callable[..., Any]) -> Any:
    """Turns a function into a graph."""
    return tf.function(function)


def _cache(function: Callable[..., Any]) -> Callable[..., Any]:
    """Caches the results of a function by its arguments."""
    return functools.lru_cache(maxsize=None)(function)


def vars_to_refs(variables: Any) -> Any:
    """Return references to variables, which can be compared and hashed.

    Args:
        variables: A variable, or variables in nested lists and tuples.

    Returns:
        References; lists become tuples.
    """
    if isinstance(variables, (list, tuple)):
        return tuple(vars_to_refs(variable) for variable in variables)
    return variables.ref()


def refs_to_vars(refs: Any) -> Any:
    """Return the variables of references.

    Args:
        refs: What `vars_to_refs` returned.

    Returns:
        Variables; tuples become lists.
    """
    if isinstance(refs, (list, tuple)):
        return [refs_to_vars(ref) for ref in refs]
    return refs.deref()


def node_name(kind: str, name: str | None, tensors: Iterable[Any]) -> str | None:
    """The name of a node of the graph that is being built, by which ranks match it."""
    if _executing_eagerly():
        return name
    if name is not None:
        return name
    first = next(iter(tensors), None)
    return f"{kind}_{_NOT_IN_NAMES.sub('_', getattr(first, 'name', ''))}"


def label(name: str | None) -> dict[str, str | None]:
    """The attribute that holds a node's name, because TensorFlow drops names of eager nodes."""
    return {"tensor_name": name or ""} if _executing_eagerly() else {"name": name}


def listed(variables: Any) -> list[Any]:
    """Variables as a list, also for a single variable."""
    return [variables] if hasattr(variables, "assign") else list(variables)


def as_tensor(value: Any) -> Any:
    """Converts a value to a dense tensor; raises an error with advice if that is not possible."""
    if tf.is_tensor(value) and not isinstance(value, _COMPOSITE):
        return tf.convert_to_tensor(value)
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(value)
        advice = "convert it first, or send it with hvd.broadcast_object"
        if isinstance(value, _COMPOSITE):
            advice = "make it dense first (`tf.sparse.to_dense`, `.to_tensor()`)"
        raise TypeError(
            "horovod.tensorflow takes tensors, variables and anything that tf.convert_to_tensor "
            "converts, such as NumPy arrays, but this is a "
            f"`{kind.__module__}.{kind.__qualname__}` ({error}); {advice}"
        ) from error


def set_id(process_set: ProcessSet) -> int:
    """The id of a registered set."""
    return registered_id(process_set)


def divided(tensor: Any, number: Any) -> Any:
    """A dense or sparse tensor, divided by a number; integers become floating-point numbers."""
    if isinstance(tensor, tf.IndexedSlices):
        values = divided(tensor.values, number)
        return tf.IndexedSlices(values, tensor.indices, tensor.dense_shape)
    return tensor / tf.cast(number, tensor.dtype)
