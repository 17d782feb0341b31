"""The parameters that estimators and models of PyTorch have, with and without Lightning."""

from __future__ import annotations

from typing import Any

from horovod.spark.common import datamodule
from horovod.spark.common.options import Option

ESTIMATOR = [
    Option("input_shapes", None, "shape of each feature column"),
    Option("loss_constructors", None, "functions that make the losses on the ranks"),
    Option("train_minibatch_fn", None, "what trains on a batch, instead of the usual loop"),
    Option("data_module", None, "PetastormDataModule or None: horovod.data reads Parquet"),
]

MODEL = [
    Option("input_shapes", None, "shape of each feature column"),
    Option("optimizer", None, "optimizer of the framework"),
    Option("loss", None, "loss function, or one for each label column"),
    Option("loss_constructors", None, "functions that make the losses on the ranks"),
]


def check(estimator: Any) -> None:
    """Refuses what contradicts itself."""
    if estimator.getOrDefault("loss") is not None and estimator.getOrDefault("loss_constructors"):
        raise ValueError("only one of loss_constructors and loss parameters can be specified.")
    datamodule.check(estimator.getOrDefault("data_module"))
    shapes = estimator.getOrDefault("input_shapes")
    features = estimator.getOrDefault("feature_cols")
    if shapes is not None and len(shapes) != len(features):
        raise ValueError(
            f"input_shapes has {len(shapes)} entries for {len(features)} feature columns; "
            "give one for each"
        )


ESTIMATOR_ORDER = """
num_proc data_module model backend store optimizer loss loss_constructors metrics loss_weights
sample_weight_col gradient_compression feature_cols continuous_cols categorical_cols input_shapes
validation label_cols callbacks batch_size val_batch_size epochs verbose random_seed
shuffle_buffer_size shuffle partitions_per_process run_id train_minibatch_fn train_steps_per_epoch
validation_steps_per_epoch transformation_fn train_reader_num_workers val_reader_num_workers
reader_pool_type label_shapes inmemory_cache_all use_gpu mp_start_method backward_passes_per_step
"""

MODEL_ORDER = """
history model feature_columns input_shapes label_columns optimizer run_id _metadata loss
loss_constructors
"""
