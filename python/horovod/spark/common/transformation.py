"""The user's function that changes batches, as pandas DataFrames, between reading and training."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]


class Transformation:
    """Applies a user's function to batches of arrays.

    The function gets a DataFrame with the columns of the batch; cells of a column with more than a
    number in a row are arrays. Fields that it edits have their type and shape from the declaration
    `(name, dtype, shape, nullable)`, and others as they come.
    """

    def __init__(
        self,
        given: Callable[..., Any],
        edited: Sequence[tuple[Any, ...]] | None = None,
        removed: Sequence[str] | None = None,
    ) -> None:
        # Horovod calls what users give to get the function; the function itself works as well.
        self._function = given if _takes_argument(given) else given()
        self._edited = {field[0]: field for field in edited or ()}
        self._removed = list(removed or ())

    def __call__(self, batch: Arrays) -> Arrays:
        """The batch that the function makes of a batch."""
        import pandas

        columns = {name: _cells(array) for name, array in batch.items()}
        frame = self._function(pandas.DataFrame(columns))
        if frame is None or not hasattr(frame, "columns"):
            raise TypeError(
                f"transformation_fn returned {type(frame).__name__}; return a pandas DataFrame"
            )
        names = [name for name in frame.columns if name not in self._removed]
        return {name: self._array(name, frame[name].to_numpy()) for name in names}

    def _array(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        array = np.stack(list(values)) if values.dtype == object and len(values) else values
        if name not in self._edited:
            return array
        _, dtype, shape, *_ = self._edited[name]
        return array.astype(dtype, copy=False).reshape(len(array), *(shape or ()))


def _takes_argument(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    required = [each for each in parameters if each.default is inspect.Parameter.empty]
    return any(each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in required)


def _cells(array: NDArray[Any]) -> Any:
    return array if array.ndim == 1 else list(array)
