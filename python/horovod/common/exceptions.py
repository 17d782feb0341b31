"""The exceptions that Horovod users catch, and those that the native module raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "WorkerRemovedError",
    "get_version_mismatch_message",
]


class HorovodInternalError(RuntimeError):
    """A collective failed: a rank was lost, or the ranks disagree about what to do.

    Distinguish cases by the attributes, not by the text. All of them are empty unless the
    world has ended, that is, unless no further collective can succeed before the next `init`.

    Args:
        *args: The text.
        ranks: Ranks that were lost, or that the others waited for without success (default: none).
        hosts: Their hosts, each once (default: none).
        cause: What ended the world, such as `signal`, `out_of_memory` or `stalled` (default:
            empty).
        tensor: Name of the tensor that this rank was waiting for (default: None, if it was waiting
            for none).
    """

    def __init__(
        self,
        *args: Any,
        ranks: Sequence[int] = (),
        hosts: Sequence[str] = (),
        cause: str = "",
        tensor: str | None = None,
    ) -> None:
        super().__init__(*args)
        self.ranks = list(ranks)
        """The ranks that were lost, or that the others waited for in vain."""
        self.hosts = list(hosts)
        """Their hosts, each once."""
        self.cause = cause
        """What ended the world, such as `signal`, `out_of_memory` or `stalled`."""
        self.tensor = tensor
        """The tensor that this rank was waiting for, if any."""

    @classmethod
    def last(cls) -> HorovodInternalError | None:
        """Return the error that ended the world of this process.

        For frameworks that pass on only the text of an error, in an exception of their own.

        Returns:
            The error, from the first call that failed because of it until the next `init`; None at
            any other time.

        Example:
            ```python
            import horovod.tensorflow as hvd

            hvd.init()
            try:
                hvd.allreduce([1.0, 2.0])
            except Exception:  # tf.errors.UnknownError, if a rank was lost
                lost = hvd.HorovodInternalError.last()
                if lost is not None:
                    print(lost.ranks, lost.cause)
                raise
            ```
        """
        # Imported here because these classes are usable without it.
        from horovod import _native

        return cast("HorovodInternalError | None", _native.last_loss())


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts were added or removed; training continues after the ranks have regrouped.

    `hvd.elastic.run` catches it.

    Args:
        skip_sync: True if hosts were only removed, so that no new rank needs the state (default:
            False).
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


class WorkerRemovedError(RuntimeError):
    """This process is no longer part of its elastic job; the text says why."""


class HorovodVersionMismatchError(ImportError):
    """A framework has a different version from the one this package was built for.

    Never raised, because nothing is built against a framework; Horovod users catch it.

    Args:
        name: Name of the framework.
        version: Version that the package was built for.
        installed_version: Version that is installed.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name: str = name
        self.version = version
        self.installed_version = installed_version


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Return the text of `HorovodVersionMismatchError`.

    Args:
        name: Name of the framework.
        version: Version that the package was built for.
        installed_version: Version that is installed.

    Returns:
        The text.
    """
    return (
        f"this package was made for {name} {version}, but {name} {installed_version} is "
        f"installed; install {name}=={version} or another release of this package"
    )
