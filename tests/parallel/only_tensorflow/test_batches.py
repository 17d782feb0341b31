"""Readers of `horovod.data` as `tf.data.Dataset`, on several ranks."""

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

import tensorflow as tf  # noqa: E402

import horovod.tensorflow as hvd  # noqa: E402
from horovod.data import ArrowReader, Column  # noqa: E402
from horovod.tensorflow.data.batches import batch_dataset  # noqa: E402

ROWS = 101
TABLE = pa.table(
    {
        "x": [[float(i), -float(i)] for i in range(ROWS)],
        "label": np.arange(ROWS),
        "name": [str(i) for i in range(ROWS)],
        "time": pa.array(range(ROWS), pa.timestamp("s")),
    }
)
COLUMNS = {"x": None, "label": None, "name": None, "time": Column(dtype="int64")}


def mine(**options):
    return ArrowReader(TABLE, 8, shard=(hvd.rank(), hvd.size()), **options)


def test_a_dataset_has_all_rows_of_this_rank_in_every_epoch():
    dataset = batch_dataset(mine(columns=COLUMNS, uneven="join")).prefetch(1)
    assert dataset.cardinality() == len(mine(uneven="join"))
    epochs = []
    for _ in range(2):
        labels = []
        for batch in dataset:
            assert batch["x"].dtype == tf.float64 and batch["x"].shape[1:] == (2,)
            assert [int(name) for name in batch["name"].numpy()] == batch["label"].numpy().tolist()
            labels += batch["label"].numpy().tolist()
        everyones = [label for share in hvd.allgather_object(labels) for label in share]
        assert sorted(everyones) == list(range(ROWS))
        epochs.append(labels)
    assert epochs[0] != epochs[1]


def test_whole_batches_have_a_static_shape_and_train_a_model():
    dataset = batch_dataset(mine(columns={"x": Column(dtype="float32"), "label": None}))
    assert dataset.element_spec["x"].shape == (8, 2)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(dataset.map(lambda b: (b["x"] / 100, b["label"])), epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2


def test_types_that_tensorflow_lacks_are_named():
    with pytest.raises(TypeError, match=r"column `time` has elements of type datetime64\[s\]"):
        batch_dataset(mine())


def test_a_stream_needs_a_signature_and_has_no_known_length():
    reader = ArrowReader(lambda: [TABLE.select(["label"])], 8)
    with pytest.raises(TypeError, match="a stream has no rows before an epoch"):
        batch_dataset(reader)
    dataset = batch_dataset(reader, {"label": tf.TensorSpec((8,), tf.int64)})
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
    assert sum(1 for _ in dataset) == ROWS // 8
