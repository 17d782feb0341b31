"""Predicting with a Keras model on an executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from horovod.spark.keras.feeding import fitting, one_or_all, shapes_of
from horovod.spark.keras.saved import SavedModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horovod.spark.common.inference import Predict


class KerasPredictor:
    """Makes the function that predicts; it travels to executors.

    Args:
        saved: The model.
        floats: Type of the floats that it gets.
    """

    def __init__(self, saved: SavedModel, floats: str) -> None:
        self._saved, self._floats = saved, floats

    def __call__(self) -> Predict:
        """The function, of arrays of features."""
        model = self._saved.load()
        shapes = shapes_of(model, "inputs")

        def predict(features: list[NDArray[Any]]) -> list[NDArray[Any]]:
            inputs = fitting(features, shapes, self._floats)
            outputs = model.predict_on_batch(one_or_all(inputs))
            listed = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
            return [np.asarray(output) for output in listed]

        return predict
