"""Losses and metrics of a batch with several labels, weights of labels and weights of rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

Outputs = list[torch.Tensor]


class Losses:
    """The loss of a batch: the weighted sum over its labels.

    Args:
        functions: One for all labels, or one for each.
        labels: Names of the labels.
        weights: Their weights (default: equal ones that add up to 1).
    """

    def __init__(
        self, functions: Any, labels: Sequence[str], weights: Sequence[float] | None
    ) -> None:
        given = list(functions) if isinstance(functions, (list, tuple)) else [functions]
        if len(given) == 1:
            given *= len(labels)
        if len(given) != len(labels):
            raise ValueError(
                f"there are {len(given)} losses for {len(labels)} label columns; give one, or one "
                "for each"
            )
        self._functions = given
        self._weights = list(weights or [1.0 / len(labels)] * len(labels))

    def __call__(
        self, outputs: Outputs, labels: Outputs, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """The loss of a batch; `rows` are the weights of its rows."""
        parts = zip(self._functions, outputs, labels, self._weights)
        terms = [
            weight * _loss(function, output, label, rows)
            for function, output, label, weight in parts
        ]
        return torch.stack(terms).sum()


class Metrics:
    """Functions `metric(output, label)` for each label, with the names they have in the history.

    Args:
        functions: A list of them, or a dict by name.
        labels: Names of the labels.
    """

    def __init__(self, functions: Any, labels: Sequence[str]) -> None:
        named = functions if isinstance(functions, dict) else {_name(f): f for f in functions or ()}
        self._functions: dict[str, Callable[..., Any]] = dict(named)
        self._labels = labels

    @property
    def names(self) -> list[str]:
        """Those of all values, in order."""
        single = len(self._labels) == 1
        return [
            name if single else f"{label}_{name}"
            for label in self._labels
            for name in self._functions
        ]

    def __call__(self, outputs: Outputs, labels: Outputs) -> list[float]:
        """The values for a batch."""
        with torch.no_grad():
            return [
                float(function(output, label))
                for output, label in zip(outputs, labels)
                for function in self._functions.values()
            ]


def made_losses(given: Any, constructors: Any) -> Any:
    """The losses, made here if there are functions that make them."""
    if not constructors:
        return given
    listed = constructors if isinstance(constructors, (list, tuple)) else [constructors]
    return [make() for make in listed]


def aligned(outputs: Any, labels: Outputs) -> tuple[Outputs, Outputs]:
    """Outputs as a list, and labels in their shapes where only ones in the shape differ.

    A loss of an output of shape (n, 1) and a label of shape (n,) would compare all pairs of rows.
    """
    listed = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    if len(listed) != len(labels):
        raise ValueError(
            f"the model returns {len(listed)} outputs for {len(labels)} label columns; name a "
            "label column for each output"
        )
    return listed, [_fitting(output, label) for output, label in zip(listed, labels)]


def _fitting(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    if label.is_floating_point() and output.numel() == label.numel():
        return label.reshape(output.shape)
    return label


def _loss(function: Any, output: Any, label: Any, rows: torch.Tensor | None) -> torch.Tensor:
    if rows is None:
        loss: torch.Tensor = function(output, label)
        return loss
    if isinstance(function, torch.nn.Module):
        function = copy.copy(function)
        function.reduction = "none"
        each = function(output, label)
    else:
        try:
            each = function(output, label, reduction="none")
        except TypeError as error:
            raise ValueError(
                f"the loss {_name(function)} does not take reduction='none', which "
                f"sample_weight_col needs: {error}"
            ) from error
    each = each.reshape(len(rows), -1).mean(1)
    weighted: torch.Tensor = (each * rows).sum() / rows.sum()
    return weighted


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
