"""Compressing gradients before they are sent, and decompressing them afterwards."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from horovod.common.compression import Compressor, NoneCompressor, Spelled

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


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
        return _narrow(tensor, jnp.float16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the array in its original element type.

        Args:
            tensor: Array as it was received.
            ctx: What `compress` returned along with it.

        Returns:
            An array of the original element type.
        """
        return tensor.astype(ctx)


class BF16Compressor(Compressor, metaclass=Spelled):
    """Sends floating-point arrays as bfloat16: `Compression.bf16`.

    It keeps the range of float32, with less precision.
    """

    spelling = "Compression.bf16"

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the array as bfloat16, if it holds floating-point numbers.

        Args:
            tensor: Array to send.

        Returns:
            The array to send, and its own element type.
        """
        return _narrow(tensor, jnp.bfloat16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the array in its original element type.

        Args:
            tensor: Array as it was received.
            ctx: What `compress` returned along with it.

        Returns:
            An array of the original element type.
        """
        return tensor.astype(ctx)


class Compression:
    """Compressors to choose from, for arguments named `compression`."""

    none = NoneCompressor
    """Send data unchanged."""
    fp16 = FP16Compressor
    """Send floating-point numbers as float16."""
    bf16 = BF16Compressor
    """Send floating-point numbers as bfloat16; Horovod does not have it."""


def _narrow(tensor: Any, dtype: Any) -> tuple[Any, Any]:
    is_float = jnp.issubdtype(tensor.dtype, jnp.floating)
    return tensor.astype(dtype) if is_float else tensor, tensor.dtype
