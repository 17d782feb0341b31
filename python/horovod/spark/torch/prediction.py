"""Predicting with a PyTorch model on an executor."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle  # type: ignore[import-untyped, unused-ignore]

from horovod.spark.common.job import shaped

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horovod.spark.common.inference import Predict


class TorchPredictor:
    """Makes the function that predicts; it travels to executors.

    Args:
        model: The model.
        shapes: Shapes of the features, as the user has given them.
    """

    def __init__(self, model: Any, shapes: Sequence[Sequence[int]] | None) -> None:
        self._pickle = cloudpickle.dumps(model)
        self._shapes = shapes

    def __call__(self) -> Predict:
        """The function, of arrays of features."""
        import torch

        from horovod.spark.torch.tensors import tensor

        model = cloudpickle.load(io.BytesIO(self._pickle)).eval()
        dtype = next((each.dtype for each in model.parameters()), torch.float32)
        cpu = torch.device("cpu")

        def predict(features: list[NDArray[Any]]) -> list[NDArray[Any]]:
            shapes: Sequence[Sequence[int] | None] = self._shapes or [None] * len(features)
            inputs = [
                tensor(shaped(array, shape, f"feature {number}"), dtype, cpu)
                for number, (array, shape) in enumerate(zip(features, shapes))
            ]
            with torch.no_grad():
                outputs = model(*inputs)
            listed = outputs if isinstance(outputs, (list, tuple)) else [outputs]
            return [output.numpy() for output in listed]

        return predict
