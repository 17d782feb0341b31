"""Compressing gradients before they are sent, and decompressing them afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np

from horovod.common.compression import Compressor, NoneCompressor, Spelled

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor, metaclass=Spelled):
    """Sends floating-point arrays as float16: `Compression.fp16`."""

    spelling = "Compression.fp16"

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the array as float16, if it holds floating-point numbers.

        Args:
            tensor: Array to send.

        Returns:
            The array to send, and its own element type.
        """
        is_float = np.issubdtype(np.dtype(tensor.dtype), np.floating)
        return tensor.astype("float16", copy=False) if is_float else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the array in its original element type.

        Args:
            tensor: Array as it was received.
            ctx: What `compress` returned along with it.

        Returns:
            An array of the original element type.
        """
        return tensor.astype(ctx, copy=False)


class Compression:
    """Compressors to choose from, for arguments named `compression`."""

    none = NoneCompressor
    """Send data unchanged."""
    fp16 = FP16Compressor
    """Send floating-point numbers as float16."""
