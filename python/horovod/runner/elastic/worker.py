"""What a worker of an elastic job hears, by the name that Horovod has for this place."""

from __future__ import annotations

from horovod.common.notification import HostUpdateResult, WorkerNotificationManager

__all__ = ["HostUpdateResult", "WorkerNotificationManager"]
