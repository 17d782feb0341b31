"""Errors of collectives as MXNet programs catch them: each one is also an `MXNetError`.

Reductions and broadcasts fail in MXNet's own engine, which raises its own class. Errors that occur
before an array reaches that engine are converted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mxnet.base import MXNetError

from horovod.common.exceptions import HorovodInternalError
from horovod.common.reductions import UnsupportedReductionError

__all__ = [
    "CollectiveError",
    "InvalidArgumentError",
    "UnsupportedError",
]


class InvalidArgumentError(MXNetError, ValueError):  # type: ignore[misc, unused-ignore]
    """A collective was called with invalid arguments."""


class UnsupportedError(MXNetError, UnsupportedReductionError):  # type: ignore[misc, unused-ignore]
    """A collective does not support the requested reduction."""


class CollectiveError(MXNetError, HorovodInternalError):  # type: ignore[misc, unused-ignore]
    """A collective failed: a rank was lost, or the ranks disagree about what to do.

    Args:
        *args: The text.
        ranks: Ranks that were lost, or that the others waited for without success (default: none).
        hosts: Their hosts, each once (default: none).
        cause: What ended the world, such as `signal`, `out_of_memory` or `stalled` (default:
            empty).
        tensor: Name of the tensor that this rank was waiting for (default: None, if it was waiting
            for none).
    """


@contextmanager
def mxnet_errors() -> Iterator[None]:
    """Converts errors raised inside to MXNet's, with the same text."""
    try:
        yield
    except HorovodInternalError as error:
        known = {name: getattr(error, name) for name in ("ranks", "hosts", "cause", "tensor")}
        raise CollectiveError(str(error), **known) from error
    except UnsupportedReductionError as error:
        raise UnsupportedError(str(error)) from error
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from error
