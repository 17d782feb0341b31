"""The exceptions Horovod's users catch; the native module raises some of them."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective failed: a rank was lost, or the ranks did not agree on what to do."""


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts changed; training goes on after the ranks have met again.

    `skip_sync` is true if hosts were only removed, so that no newcomer needs the state.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


class WorkerRemovedError(RuntimeError):
    """This process is no longer part of its elastic job: it cannot meet the others again."""


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
