"""A common time limit for several activities."""

from __future__ import annotations

import time


class TimeoutException(Exception):
    """Something took longer than a `Timeout` allows."""


class Timeout:
    """A time limit that starts now; `message` may contain `{activity}` and `{timeout}`."""

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout = timeout
        self._message = message
        self._end = time.monotonic() + timeout

    def remaining(self) -> float:
        """The remaining seconds, never less than 0."""
        return max(0.0, self._end - time.monotonic())

    def timed_out(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self._end

    def check_time_out_for(self, activity: str) -> None:
        """Raises `TimeoutException`, which names `activity`, if the time is over."""
        if self.timed_out():
            words = self._message.format(activity=activity, timeout=self._timeout)
            raise TimeoutException(f"{words} Timeout after {self._timeout} seconds.")
