"""Runs functions in threads, at once or when an event is set."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Calls a function in a new thread, which is returned; `silent` hides its exceptions."""
    _check(args)

    def quietly() -> None:
        with suppress(Exception):
            target(*args)

    thread = (
        threading.Thread(target=quietly, name=name, daemon=daemon)
        if silent
        else threading.Thread(target=target, args=args, name=name, daemon=daemon)
    )
    thread.start()
    return thread


def on_event(
    event: threading.Event,
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Calls a function in a thread when `event` is set, unless `stop` is set before.

    `stop` is checked every `check_stop_interval_s` seconds.
    """
    if event is None:
        raise ValueError("Event must not be None")
    _check(args)
    if stop is None and not daemon:
        raise ValueError("Stop event must be given for non-daemon event thread")

    def wait() -> None:
        if stop is None:
            event.wait()
        else:
            while not event.wait(check_stop_interval_s):
                if stop.is_set():
                    return
            if stop.is_set():
                return
        func(*args)

    return in_thread(wait, daemon=daemon, silent=silent)


def _check(args: object) -> None:
    if not isinstance(args, tuple):
        raise ValueError(
            f"args must be a tuple, not {type(args)}: for a single argument use (arg,)"
        )
