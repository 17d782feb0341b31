"""Spark ML estimators that train PyTorch models on all ranks of a Spark cluster."""

from __future__ import annotations

from horovod.spark.torch.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
