"""The parameters that only Lightning has, and Horovod's order of all."""

from __future__ import annotations

from horovod.spark.common.options import Option

ESTIMATOR = [
    Option(
        "num_gpus", None, "accepted for compatibility, ranks use what Spark assigned", "NumGPUs"
    ),
    Option("logger", None, "a logger of Lightning"),
    Option("log_every_n_steps", 50, "steps between lines of the logger", "LogEveryNSteps"),
    Option("loader_num_epochs", None, "accepted for compatibility, readers never end"),
    Option("terminate_on_nan", False, "whether a loss that is not finite ends training"),
    Option("trainer_args", None, "further arguments of Lightning's Trainer"),
    Option("debug_data_loader", False, "accepted for compatibility"),
    Option("train_async_data_loader_queue_size", None, "batches that are loaded ahead"),
    Option("val_async_data_loader_queue_size", None, "batches of validation loaded ahead"),
    Option("profiler", None, "a profiler of Lightning"),
]

ESTIMATOR_ORDER = """
num_proc model backend store optimizer loss loss_constructors metrics loss_weights
sample_weight_col gradient_compression feature_cols input_shapes validation label_cols callbacks
batch_size val_batch_size epochs verbose random_seed shuffle_buffer_size shuffle
partitions_per_process run_id train_minibatch_fn train_steps_per_epoch validation_steps_per_epoch
transformation_fn transformation_edit_fields transformation_removed_fields train_reader_num_workers
trainer_args val_reader_num_workers reader_pool_type label_shapes inmemory_cache_all num_gpus logger
log_every_n_steps data_module loader_num_epochs terminate_on_nan profiler debug_data_loader
train_async_data_loader_queue_size val_async_data_loader_queue_size use_gpu mp_start_method
"""
