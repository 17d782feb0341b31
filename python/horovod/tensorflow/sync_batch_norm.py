"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod import _native
from horovod._keras.backends import is_keras_3
from horovod.common.basics import _basics
from horovod.common.reductions import Average
from horovod.tensorflow.mpi_ops import _allreduce

__all__ = [
    "SyncBatchNormalization",
]

_Base: Any = tf.keras.layers.BatchNormalization
_IS_KERAS_2 = not is_keras_3(tf.keras)


class SyncBatchNormalization(_Base):
    """`tf.keras.layers.BatchNormalization` with the mean and variance of all ranks' batches.

    Every rank must call it the same number of times. Each rank has the same weight, whatever the
    size of its batch.

    Args:
        fused: Must be False (default: False): a fused kernel cannot be synchronized.
        **kwargs: Arguments of `tf.keras.layers.BatchNormalization`.

    Raises:
        ValueError: If `fused` is not False.
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if _IS_KERAS_2:
            # It would choose a fused kernel, which cannot be synchronized.
            kwargs["fused"] = False
        super().__init__(**kwargs)

    # Keras 2 has the second of these, which the first calls; Keras 3 has only the first.
    def _moments(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The mean and the variance over all ranks."""
        mean, variance = super()._moments(*args, **kwargs)
        return (mean, variance) if _IS_KERAS_2 else _over_ranks(mean, variance)

    def _calculate_mean_and_var(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The mean and the variance over all ranks."""
        return _over_ranks(*super()._calculate_mean_and_var(*args, **kwargs))


def _over_ranks(mean: Any, variance: Any) -> tuple[Any, Any]:
    """Averages means and squares over ranks; variances cannot be averaged."""
    # In an elastic job a graph outlives its world, and only the engine knows the number of ranks.
    if _basics.size() == 1 and not _native.may_grow():
        return mean, variance
    both = _allreduce(tf.stack([mean, variance + tf.square(mean)]), op=Average)
    return both[0], both[1] - tf.square(both[0])
