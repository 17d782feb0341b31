"""What the compressors of all frameworks share."""

from __future__ import annotations

from typing import Any


class Compressor:
    """What can be given as `compression`: two static methods that undo each other."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and what `decompress` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor in its old form."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


def checked(compression: Any) -> Any:
    """What was given as `compression`, if it can compress."""
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise ValueError(
            f"compression is {compression!r}; give Compression.none, Compression.fp16 or a class "
            "of your own with `compress` and `decompress`"
        )
    return compression
