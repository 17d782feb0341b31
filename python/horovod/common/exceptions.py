"""The exceptions Horovod's users catch, and those that the native module raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast


class HorovodInternalError(RuntimeError):
    """A collective failed: a rank was lost, or the ranks did not agree on what to do.

    Programs tell one case from another by its attributes, never by its text. All of them are empty
    unless the world has ended.
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
        """What kind of thing ended the world, such as `signal`, `out_of_memory` or `stalled`."""
        self.tensor = tensor
        """The tensor that this rank waited for, if it did."""

    @classmethod
    def last(cls) -> HorovodInternalError | None:
        """What ended the world of this process; None as long as no call has failed because of it.

        For where a framework passes on no more than the text of an error, in a class of its own.
        """
        # Imported here because these classes can be had without it.
        from horovod import _native

        return cast("HorovodInternalError | None", _native.last_loss())


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts changed; training goes on after the ranks have met again.

    `skip_sync` is true if hosts were only removed, so that no newcomer needs the state.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


class WorkerRemovedError(RuntimeError):
    """This process is no longer part of its elastic job; the text says why."""


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than the one this package was made for."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name: str = name
        self.version = version
        self.installed_version = installed_version


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """The text of `HorovodVersionMismatchError`."""
    return (
        f"this package was made for {name} {version}, but {name} {installed_version} is "
        f"installed; install {name}=={version} or another release of this package"
    )
