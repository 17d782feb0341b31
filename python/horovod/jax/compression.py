"""Making gradients smaller on the wire, and whole again behind it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from horovod.common.compression import Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Sends floating-point arrays as float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return _narrow(tensor, jnp.float16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor.astype(ctx)


class BF16Compressor(Compressor):
    """Sends floating-point arrays as bfloat16, which keeps the range of float32."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return _narrow(tensor, jnp.bfloat16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor.astype(ctx)


class Compression:
    """The compressors to choose from; `bf16` is beyond Horovod."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def _narrow(tensor: Any, dtype: Any) -> tuple[Any, Any]:
    is_float = jnp.issubdtype(tensor.dtype, jnp.floating)
    return tensor.astype(dtype) if is_float else tensor, tensor.dtype
