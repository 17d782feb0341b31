"""An optimizer and the parameters of its model."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch


def attach(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    """Has the optimizer change this model, also if it was made for a copy of it.

    Copies are made when an estimator is stored, or its model replaced.
    """
    own = list(model.parameters())
    known = {id(parameter) for parameter in own}
    groups: list[dict[str, Any]] = optimizer.param_groups
    used = list(chain.from_iterable(group["params"] for group in groups))
    if all(id(parameter) in known for parameter in used):
        return
    if [each.shape for each in used] != [each.shape for each in own]:
        raise ValueError(
            "the optimizer changes parameters that are not the model's; make it with "
            "model.parameters() of the same model"
        )
    replaced = dict(zip(map(id, used), own))
    states = {id(parameter): state for parameter, state in optimizer.state.items()}
    optimizer.state.clear()
    for old, new in replaced.items():
        if old in states:
            optimizer.state[new] = states[old]
    for group in groups:
        group["params"] = [replaced[id(parameter)] for parameter in group["params"]]


def scale_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Multiplies its learning rates."""
    for group in optimizer.param_groups:
        if "lr" in group:
            group["lr"] = group["lr"] * factor
