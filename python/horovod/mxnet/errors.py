"""Errors of collectives as programs for MXNet catch them: every one is an `MXNetError`, too.

Reductions and broadcasts fail in MXNet's own engine, which raises its own class. What is refused or
fails before an array comes to the engine is made one of these here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mxnet.base import MXNetError

from horovod.common.exceptions import HorovodInternalError
from horovod.common.reductions import UnsupportedReductionError


class InvalidArgumentError(MXNetError, ValueError):  # type: ignore[misc, unused-ignore]
    """A collective was called with what it cannot take."""


class UnsupportedError(MXNetError, UnsupportedReductionError):  # type: ignore[misc, unused-ignore]
    """A collective does not have this reduction."""


class CollectiveError(MXNetError, HorovodInternalError):  # type: ignore[misc, unused-ignore]
    """A collective failed."""


@contextmanager
def mxnet_errors() -> Iterator[None]:
    """Raises the errors of what is done inside as such of MXNet, with the same words."""
    try:
        yield
    except HorovodInternalError as error:
        known = {name: getattr(error, name) for name in ("ranks", "hosts", "cause", "tensor")}
        raise CollectiveError(str(error), **known) from error
    except UnsupportedReductionError as error:
        raise UnsupportedError(str(error)) from error
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from error
