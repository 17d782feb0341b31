"""Readers through PyTorch's `DataLoader`; the other frameworks' tests are in `parallel`."""

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from horovod.data import ArrowReader, Column, ParquetReader  # noqa: E402


def table(rows=100):
    return pa.table(
        {
            "x": [[float(i), -float(i)] for i in range(rows)],
            "label": range(rows),
            "name": [str(i) for i in range(rows)],
            "time": pa.array(range(rows), pa.timestamp("s")),
        }
    )


@pytest.fixture
def parquet(tmp_path):
    pq.write_table(table(), tmp_path / "part.parquet", row_group_size=30)
    return tmp_path


COLUMNS = {"x": None, "label": None, "name": None, "time": Column(dtype="int64")}


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_torch_gets_every_row_in_tensors(parquet, workers, persistent):
    torch = pytest.importorskip("torch")
    from horovod.torch.data import BatchLoader

    reader = ParquetReader(parquet, 8, columns=COLUMNS, uneven="join")
    loader = BatchLoader(reader, num_workers=workers, persistent_workers=persistent)
    epochs = []
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == len(loader) == (14 if workers else 13)
        assert batches[0]["x"].dtype == torch.float64 and batches[0]["x"].shape == (8, 2)
        assert batches[0]["time"].dtype == torch.int64
        assert [int(name) for name in batches[0]["name"]] == batches[0]["label"].tolist()
        epochs.append([label for batch in batches for label in batch["label"].tolist()])
        assert sorted(epochs[-1]) == list(range(100))
    assert epochs[0] != epochs[1]


def test_tensors_share_the_memory_of_the_table():
    pytest.importorskip("torch")
    from horovod.torch.data import BatchLoader

    labels = pa.table({"label": np.arange(64)})
    start = labels.column("label").chunk(0).buffers()[1].address
    batches = list(BatchLoader(ArrowReader(labels, 16, shuffle=False)))
    assert [batch["label"].data_ptr() - start for batch in batches] == [0, 128, 256, 384]


def test_types_that_torch_lacks_are_named(parquet):
    pytest.importorskip("torch")
    from horovod.torch.data import BatchLoader

    with pytest.raises(TypeError, match=r"column `time` has elements of type datetime64\[ms\]"):
        next(iter(BatchLoader(ParquetReader(parquet, 8))))
