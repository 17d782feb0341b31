"""Shared code of the compressors of all frameworks."""

from __future__ import annotations

from typing import Any

__all__ = [
    "Compressor",
    "NoneCompressor",
]


class Spelled(type):
    """Makes a compressor print as users write it: `Compression.none`, not a class in some
    module."""

    spelling: str

    def __repr__(cls) -> str:
        # A class that a user derives prints like any class.
        return vars(cls).get("spelling") or super().__repr__()


class Compressor:
    """Base class of compressors for arguments named `compression`: two static methods.

    Derive from it to write your own. Both methods are called on every rank, so `compress` must
    return the same element type everywhere.

    Example:
        ```python
        import horovod.torch as hvd
        from horovod.torch.compression import Compressor


        class Float64ToFloat32(Compressor):
            @staticmethod
            def compress(tensor):
                return tensor.float(), tensor.dtype

            @staticmethod
            def decompress(tensor, ctx):
                return tensor.to(ctx)
        ```
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, and what `decompress` needs.

        Args:
            tensor: Tensor to send, in the framework's own type.

        Returns:
            The compressed tensor, and any value.

        Raises:
            NotImplementedError: In this base class.
        """
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor in its original form.

        Args:
            tensor: Tensor as it was received.
            ctx: What `compress` returned along with the tensor.

        Returns:
            A tensor of the type that was passed to `compress`.

        Raises:
            NotImplementedError: In this base class.
        """
        raise NotImplementedError


class NoneCompressor(Compressor, metaclass=Spelled):
    """Sends tensors unchanged: `Compression.none`."""

    spelling = "Compression.none"

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor itself.

        Args:
            tensor: Tensor to send, in the framework's own type.

        Returns:
            The tensor, and None.
        """
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor itself.

        Args:
            tensor: Tensor as it was received.
            ctx: What `compress` returned along with the tensor.

        Returns:
            The tensor.
        """
        return tensor


def checked(compression: Any) -> Any:
    """Return `compression` if it can compress.

    Args:
        compression: What the caller passed.

    Returns:
        The same object.

    Raises:
        ValueError: If it has no `compress` and `decompress`.
    """
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise ValueError(
            f"compression is {compression!r}; pass Compression.none, Compression.fp16 or a class "
            "of your own with `compress` and `decompress`"
        )
    return compression
