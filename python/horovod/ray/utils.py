"""Small functions that programs import from Horovod under this name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import ray

from horovod.ray.places import nics_to_env_var as nics_to_env_var


def map_blocking(fn: Callable[[Any], Any], collection: Iterable[Any]) -> list[Any]:
    """The values of the references that `fn` returns for each element."""
    found: list[Any] = ray.get([fn(each) for each in collection])
    return found


def detect_nics(
    settings: Any,
    all_host_names: Collection[str] | None = None,
    node_workers: Collection[Any] | None = None,
) -> set[str]:
    """The interfaces that the settings name: ranks find usable addresses by connecting.

    Args:
        settings: Settings with `nics`.
        all_host_names: Accepted for compatibility with Horovod (default: None).
        node_workers: Accepted for compatibility with Horovod (default: None).
    """
    return set(getattr(settings, "nics", None) or ())
