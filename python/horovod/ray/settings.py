"""The settings that `RayExecutor.create_settings` makes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from horovod.runner.common.util.secret import make_secret_key
from horovod.runner.common.util.timeout import Timeout


@dataclass
class MiniSettings:
    """The settings of a job on Ray; `horovod.runner.common.util.settings.Settings` work, too.

    Args:
        nics: Network interfaces for NCCL (default: it chooses).
        verbose: 2 or more to print the launcher's steps in an elastic job (default: 1).
        key: Accepted for compatibility with Horovod; every job makes its own (default: None,
            which means a new one).
        ssh_port: Accepted for compatibility with Horovod; nothing uses ssh (default: None).
        ssh_identity_file: The same (default: None).
        timeout_s: Seconds that workers may take to start, on top of the next (default: 300).
        placement_group_timeout_s: Seconds in which Ray must place the workers (default: 100).
        elastic: Whether the job is elastic (default: False).
    """

    nics: Collection[str] | None = None
    verbose: int = 1
    key: bytes | None = field(default=None, repr=False)
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    timeout_s: int = 300
    placement_group_timeout_s: int = 100
    elastic: bool = False

    def __post_init__(self) -> None:
        """Makes a key, for programs that look for one."""
        self.key = self.key or make_secret_key()

    @property
    def start_timeout(self) -> Timeout:
        """A time limit of `timeout_s` that starts now."""
        return Timeout(
            self.timeout_s,
            "Timed out waiting for {activity}; the limit is `timeout_s` of the settings.",
        )
