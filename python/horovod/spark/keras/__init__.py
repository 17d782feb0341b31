"""Spark ML estimators that train Keras models on all ranks of a Spark cluster."""

from __future__ import annotations

from horovod.spark.keras.estimator import KerasEstimator, KerasModel

__all__ = ["KerasEstimator", "KerasModel"]
