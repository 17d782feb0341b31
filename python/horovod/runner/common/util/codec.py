"""Objects as text: cloudpickle in base64. Only load what you have written yourself."""

from __future__ import annotations

import base64
from typing import Any

import cloudpickle  # type: ignore[import-untyped, unused-ignore]


def dumps_base64(obj: Any, to_ascii: bool = True) -> str | bytes:
    """An object as text, or as the bytes of that text."""
    encoded = base64.b64encode(cloudpickle.dumps(obj))
    return encoded.decode("ascii") if to_ascii else encoded


def loads_base64(encoded: str | bytes) -> Any:
    """Loads what `dumps_base64` returned. Runs any code in it."""
    return cloudpickle.loads(base64.b64decode(encoded))
