"""A limit for several things together."""

from __future__ import annotations

import time


class TimeoutException(Exception):
    """Something took longer than a `Timeout` allows."""


class Timeout:
    """A number of seconds that begin now; `message` may have `{activity}` and `{timeout}` in it."""

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout = timeout
        self._message = message
        self._end = time.monotonic() + timeout

    def remaining(self) -> float:
        """The seconds that are left, never less than 0."""
        return max(0.0, self._end - time.monotonic())

    def timed_out(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self._end

    def check_time_out_for(self, activity: str) -> None:
        """Raises `TimeoutException` if the time is over, in which `activity` did not come about."""
        if self.timed_out():
            words = self._message.format(activity=activity, timeout=self._timeout)
            raise TimeoutException(f"{words} Timeout after {self._timeout} seconds.")
