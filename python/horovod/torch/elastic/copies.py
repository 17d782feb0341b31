"""Copies of state dictionaries in reused memory, so that a commit allocates nothing."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch


def copied(value: Any, kept: Any = None) -> Any:
    """Copies a value and everything in it; its tensors reuse the memory of those in `kept`.

    `kept` is an earlier copy, which must not be used any more.
    """
    if isinstance(value, torch.Tensor):
        return _copied_tensor(value, kept)
    if type(value) in (dict, OrderedDict):
        return _copied_dictionary(value, kept)
    if type(value) in (list, tuple):
        former = kept if type(kept) is type(value) and len(kept) == len(value) else ()
        pairs = zip(value, former or [None] * len(value))
        return type(value)(copied(each, other) for each, other in pairs)
    return copy.deepcopy(value)


def _copied_dictionary(value: Any, kept: Any) -> Any:
    former = kept if isinstance(kept, dict) else {}
    made = type(value)((name, copied(each, former.get(name))) for name, each in value.items())
    # Modules store the versions of their formats there.
    if hasattr(value, "_metadata"):
        made._metadata = copy.deepcopy(value._metadata)
    return made


def _copied_tensor(tensor: torch.Tensor, kept: Any) -> torch.Tensor:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_sparse:
        return copy.deepcopy(tensor.detach())
    source = tensor.detach()
    fits = (
        isinstance(kept, torch.Tensor)
        and kept.shape == source.shape
        and kept.dtype is source.dtype
        and kept.device == source.device
        and kept.stride() == source.stride()
    )
    return kept.copy_(source) if fits else source.clone()
