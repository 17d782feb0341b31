"""Spark ML estimators that train Lightning modules on all ranks of a Spark cluster."""

from __future__ import annotations

from horovod.spark.lightning.estimator import MIN_PL_VERSION, TorchEstimator, TorchModel

__all__ = ["MIN_PL_VERSION", "TorchEstimator", "TorchModel"]
