"""Making gradients smaller on the wire, and whole again behind it."""

from __future__ import annotations

from typing import Any

import numpy as np

from horovod.common.compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        is_float = np.issubdtype(np.dtype(tensor.dtype), np.floating)
        return tensor.astype("float16", copy=False) if is_float else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor.astype(ctx, copy=False)


class Compression:
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
