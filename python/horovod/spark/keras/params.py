"""The parameters that only Keras has, and Horovod's order of all."""

from __future__ import annotations

from horovod.spark.common.options import Option

ESTIMATOR = [
    Option("custom_objects", {}, "classes and functions that the model uses, by name"),
    Option("checkpoint_callback", None, "a ModelCheckpoint that decides when rank 0 saves"),
    Option(
        "backend_env",
        {"LIBHDFS_OPTS": "-Xms2048m -Xmx2048m"},
        "further environment variables of the ranks",
    ),
    Option("data_module", None, "PetastormDataModule or None: horovod.data reads Parquet"),
]

MODEL = [
    Option("custom_objects", {}, "classes and functions that the model uses, by name"),
    Option("_floatx", "float32", "type of the floats that the model gets"),
]

ESTIMATOR_ORDER = """
num_proc data_module model backend store custom_objects optimizer loss loss_weights
sample_weight_col gradient_compression metrics feature_cols label_cols continuous_cols
categorical_cols validation callbacks batch_size val_batch_size epochs verbose random_seed
shuffle_buffer_size shuffle partitions_per_process run_id train_steps_per_epoch
validation_steps_per_epoch transformation_fn train_reader_num_workers val_reader_num_workers
reader_pool_type label_shapes checkpoint_callback inmemory_cache_all backend_env use_gpu
mp_start_method tensorflow_dataset_prefetch_buffer_size
"""

MODEL_ORDER = """
history model feature_columns label_columns custom_objects run_id _metadata _floatx
"""
