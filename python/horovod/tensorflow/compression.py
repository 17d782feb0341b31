"""Making gradients smaller on the wire, and whole again behind it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.common.compression import Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return _narrow(tensor, tf.float16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tf.cast(tensor, ctx)


class BF16Compressor(Compressor):
    """Sends floating-point tensors as bfloat16, which keeps the range of float32."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return _narrow(tensor, tf.bfloat16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tf.cast(tensor, ctx)


class Compression:
    """The compressors to choose from; `bf16` is beyond Horovod."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def _narrow(tensor: Any, dtype: Any) -> tuple[Any, Any]:
    return tf.cast(tensor, dtype) if tensor.dtype.is_floating else tensor, tensor.dtype
