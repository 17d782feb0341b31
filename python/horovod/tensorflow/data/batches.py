"""The batches of a reader of `horovod.data` as a `tf.data.Dataset`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horovod.data import BatchReader

__all__ = ["batch_dataset"]


def batch_dataset(reader: BatchReader, output_signature: Any = None) -> Any:
    """Make a dataset of the batches of a reader, each a dict of tensors by column name.

    Each iteration over the dataset is an epoch of the reader. TensorFlow copies every batch once.
    The batch size is the reader's; to get pairs of features and labels, use `map`.

    Args:
        reader: A reader of `horovod.data`, such as `ParquetReader`.
        output_signature: A dict of `tf.TensorSpec` by column name (default: None, what the first
            rows say; a stream, such as a `RayReader`, needs it given).

    Returns:
        The dataset.

    Example:
        ```python
        import pyarrow as pa
        import horovod.tensorflow as hvd

        from horovod.data import ArrowReader
        from horovod.tensorflow.data.batches import batch_dataset

        table = pa.table({"x": [[1.0, 2.0]] * 64, "label": range(64)})
        dataset = batch_dataset(ArrowReader(table, batch_size=16))
        for x, label in dataset.map(lambda batch: (batch["x"], batch["label"])):
            assert x.shape == (16, 2) and label.shape == (16,)
        ```
    """
    if output_signature is None:
        example = reader.example()
        rows = None if reader.uneven == "join" else reader.batch_size
        output_signature = {name: _spec(name, array, rows) for name, array in example.items()}
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(reader), output_signature=output_signature
    )
    try:
        batches = len(reader)
    except TypeError:
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(batches))


def _spec(name: str, array: NDArray[Any], rows: int | None) -> Any:
    try:
        kind = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
    except TypeError as error:
        raise TypeError(
            f"column `{name}` has elements of type {array.dtype}, which TensorFlow lacks; convert "
            f'them with `columns={{"{name}": Column(dtype=...)}}`'
        ) from error
    return tf.TensorSpec((rows, *array.shape[1:]), kind)
