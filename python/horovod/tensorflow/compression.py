"""Compressing gradients before they are sent, and decompressing them afterwards."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.common.compression import Compressor, NoneCompressor, Spelled

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor, metaclass=Spelled):
    """Sends floating-point tensors as float16: `Compression.fp16`."""

    spelling = "Compression.fp16"

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor as float16, if it holds floating-point numbers.

        Args:
            tensor: Tensor to send.

        Returns:
            The tensor to send, and its own element type.
        """
        return _narrow(tensor, tf.float16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor in its original element type.

        Args:
            tensor: Tensor as it was received.
            ctx: What `compress` returned along with it.

        Returns:
            A tensor of the original element type.
        """
        return tf.cast(tensor, ctx)


class BF16Compressor(Compressor, metaclass=Spelled):
    """Sends floating-point tensors as bfloat16: `Compression.bf16`.

    It keeps the range of float32, with less precision.
    """

    spelling = "Compression.bf16"

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor as bfloat16, if it holds floating-point numbers.

        Args:
            tensor: Tensor to send.

        Returns:
            The tensor to send, and its own element type.
        """
        return _narrow(tensor, tf.bfloat16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor in its original element type.

        Args:
            tensor: Tensor as it was received.
            ctx: What `compress` returned along with it.

        Returns:
            A tensor of the original element type.
        """
        return tf.cast(tensor, ctx)


class Compression:
    """Compressors to choose from, for arguments named `compression`."""

    none = NoneCompressor
    """Send data unchanged."""
    fp16 = FP16Compressor
    """Send floating-point numbers as float16."""
    bf16 = BF16Compressor
    """Send floating-point numbers as bfloat16; Horovod does not have it."""


def _narrow(tensor: Any, dtype: Any) -> tuple[Any, Any]:
    return tf.cast(tensor, dtype) if tensor.dtype.is_floating else tensor, tensor.dtype
