"""Notifications for workers of an elastic job, under Horovod's module name."""

from __future__ import annotations

from horovod.common.notification import HostUpdateResult, WorkerNotificationManager

__all__ = ["HostUpdateResult", "WorkerNotificationManager"]
