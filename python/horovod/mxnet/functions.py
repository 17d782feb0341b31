"""Broadcasting parameters."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import mxnet as mx

from horovod.common.basics import _basics
from horovod.mxnet.mpi_ops import broadcast_

__all__ = [
    "broadcast_parameters",
]


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """Overwrite parameters with those of one rank, so that all ranks start with the same values.

    A Gluon parameter whose shape is not known yet is broadcast when it is initialized.

    Args:
        params: Dictionary of arrays, as `Module.get_params()` returns, or of Gluon parameters.
        root_rank: Rank that sends (default: 0).
        prefix: Prefix for the names of the parameters; use a different one for each call if names
            repeat (default: None).

    Raises:
        ValueError: If `params` is of another type.
        mxnet.base.MXNetError: If a rank was lost, the ranks disagree about shape, element type or
            operation, or the call is invalid. Raised when the result is used.
    """
    if not (isinstance(params, Mapping) or hasattr(params, "items")):
        raise ValueError(f"invalid params of type: {type(params)}")
    if _basics.size() == 1:
        return
    prefix = prefix or ""
    tensors = []
    for name, parameter in sorted(params.items()):
        full = f"{prefix}{name}"
        if isinstance(parameter, mx.nd.NDArray):
            tensors.append((full, parameter))
            continue
        try:
            tensors.append((full, parameter.data()))
        except mx.gluon.parameter.DeferredInitializationError:
            parameter._init_impl = types.MethodType(_initializing(root_rank, full), parameter)
    for full, tensor in tensors:
        broadcast_(tensor, root_rank, name=full)
    for _, tensor in tensors:
        tensor.wait_to_read()


def _initializing(root_rank: int, name: str) -> Any:
    def initialize(parameter: Any, *arguments: Any) -> None:
        # Restores the method of the class.
        del parameter._init_impl
        parameter._init_impl(*arguments)
        tensor = parameter.data()
        broadcast_(tensor, root_rank, name=name)
        tensor.wait_to_read()

    return initialize
