"""The parameters that all estimators have, those that all models have, and what they may be."""

from __future__ import annotations

from horovod.spark.common.options import Configured, Option, with_options

__all__ = [
    "EstimatorParams",
    "ModelParams",
]

_ESTIMATOR = [
    Option("num_proc", None, "number of ranks, all free slots of Spark if None"),
    Option("model", None, "the model to train"),
    Option("backend", None, "what runs the ranks, instead of `num_proc`"),
    Option("store", None, "where data and runs are kept"),
    Option("loss", None, "loss function, or one for each label column"),
    Option("loss_weights", None, "weight of the loss of each label column"),
    Option("sample_weight_col", None, "column with the weight of each row"),
    Option("metrics", [], "functions that measure the model beside its loss"),
    Option("feature_cols", None, "columns that the model reads"),
    Option("label_cols", None, "columns that the model predicts"),
    Option("continuous_cols", None, "accepted for compatibility, read by no framework"),
    Option("categorical_cols", None, "accepted for compatibility, read by no framework"),
    Option("validation", None, "share of the rows, or name of a column, that is for validation"),
    Option("callbacks", [], "callbacks for the training loop"),
    Option("batch_size", 32, "rows in a batch of one rank"),
    Option("val_batch_size", None, "rows in a batch of validation, `batch_size` if None"),
    Option("epochs", 1, "passes over the data"),
    Option("train_steps_per_epoch", None, "batches of one rank in an epoch, all if None"),
    Option("validation_steps_per_epoch", None, "batches of validation, all if None"),
    Option("verbose", 1, "1 for a line of rank 0 for each epoch, 2 for more, 0 for none"),
    Option("gradient_compression", None, "compression of the gradients, such as Compression.fp16"),
    Option("compress_sparse_cols", False, "accepted for compatibility, Parquet compresses itself"),
    Option("random_seed", None, "seed of shuffling, of the split and of the framework"),
    Option(
        "shuffle_buffer_size",
        None,
        "rows in the buffer from which batches are drawn",
        "ShufflingBufferSize",
    ),
    Option("shuffle", True, "whether rows are shuffled in each epoch"),
    Option("optimizer", None, "optimizer of the framework"),
    Option("partitions_per_process", 10, "Parquet files that Spark writes for each rank"),
    Option("run_id", None, "name of the run, one that exists is resumed"),
    Option("transformation_fn", None, "makes a function that changes each batch, as DataFrame"),
    Option("transformation_edit_fields", None, "fields that the function changes or adds"),
    Option("transformation_removed_fields", None, "fields that the function removes"),
    Option("train_reader_num_workers", 2, "loads four batches ahead each", "TrainReaderNumWorker"),
    Option("val_reader_num_workers", 2, "loads four batches ahead each", "ValReaderNumWorker"),
    Option("reader_pool_type", "thread", "accepted for compatibility, readers are threads"),
    Option("label_shapes", None, "shape of each label column"),
    Option(
        "inmemory_cache_all", False, "whether ranks keep their rows in memory", "InMemoryCacheAll"
    ),
    Option("use_gpu", True, "whether ranks use GPUs if they have them"),
    Option("mp_start_method", None, "accepted for compatibility, readers are no processes"),
    Option("backward_passes_per_step", 1, "batches whose gradients are summed for a step"),
    Option(
        "tensorflow_dataset_prefetch_buffer_size",
        0,
        "batches that are loaded ahead, with Keras",
    ),
]

_MODEL = [
    Option("history", None, "what training measured in each epoch"),
    Option("model", None, "the trained model"),
    Option("feature_columns", None, "columns that the model reads"),
    Option("label_columns", None, "columns that it predicts", "LabelColumns", "LabelColoumns"),
    Option("run_id", None, "name of the run that trained it"),
    Option("_metadata", None, "shapes and types of the columns it was trained on"),
    Option("output_cols", None, "names of the columns that transform adds"),
]


@with_options(_ESTIMATOR)
class EstimatorParams(Configured):
    """The parameters of an estimator, with `setX` and `getX` for each."""

    def _check(self) -> None:
        """Refuses what no training can start with."""
        for name in ("num_proc", "partitions_per_process", "batch_size", "epochs"):
            value = self.getOrDefault(name)
            if value is not None and (not isinstance(value, int) or value <= 0):
                raise ValueError(f"{name} must be a positive integer, not {value!r}")
        if self.getOrDefault("model") is None:
            raise ValueError("Model parameter is required")
        for name in ("feature_cols", "label_cols"):
            if not self.getOrDefault(name):
                raise ValueError(f"{name} must name at least one column")
        if self.getOrDefault("backend") is not None and self.getOrDefault("num_proc") is not None:
            raise ValueError('At most one of parameters "backend" and "num_proc" may be specified')
        if self.getOrDefault("store") is None:
            raise ValueError(
                "store is required: where data and runs are kept, such as "
                'Store.create("hdfs:///user/me/experiments")'
            )
        self._check_validation()
        self._check_lengths()

    def _check_validation(self) -> None:
        share = self.getOrDefault("validation")
        if isinstance(share, str) or share is None:
            return
        if isinstance(share, bool) or not isinstance(share, (int, float)):
            raise ValueError(f"validation must be a share or the name of a column, not {share!r}")
        if not 0 <= share < 1:
            raise ValueError(f"validation must be in [0, 1), not {share}")

    def _check_lengths(self) -> None:
        labels = self.getOrDefault("label_cols")
        for name in ("label_shapes", "loss_weights"):
            value = self.getOrDefault(name)
            if isinstance(value, (list, tuple)) and len(value) != len(labels):
                raise ValueError(
                    f"{name} has {len(value)} entries for {len(labels)} label columns; "
                    "give one for each"
                )


@with_options(_MODEL)
class ModelParams(Configured):
    """The parameters of a trained model, with `setX` and `getX` for each."""

    def _outputs(self) -> list[str]:
        given = self.getOrDefault("output_cols")
        return list(given or [f"{name}__output" for name in self.getOrDefault("label_columns")])
