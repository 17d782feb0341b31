"""Readers of `horovod.data` on JAX's devices, on several ranks."""

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

import jax  # noqa: E402

import horovod.jax as hvd  # noqa: E402
from horovod.data import ArrowReader  # noqa: E402
from horovod.jax.data import device_batches  # noqa: E402

ROWS = 101
TABLE = pa.table(
    {
        "x": [[float(i), -float(i)] for i in range(ROWS)],
        "label": np.arange(ROWS),
        "name": [str(i) for i in range(ROWS)],
    }
)


@pytest.mark.parametrize("ahead", [0, 2, 100])
def test_every_row_of_this_rank_is_on_the_device(ahead):
    reader = ArrowReader(TABLE, 8, shard=(hvd.rank(), hvd.size()), uneven="join")
    device = jax.devices()[0]
    labels = []
    for batch in device_batches(reader, device, ahead):
        assert isinstance(batch["x"], jax.Array) and batch["x"].devices() == {device}
        assert [int(name) for name in batch["name"]] == batch["label"].tolist()
        assert batch["x"][:, 0].tolist() == batch["label"].tolist()
        labels += batch["label"].tolist()
    everyones = [label for share in hvd.allgather_object(labels) for label in share]
    assert sorted(everyones) == list(range(ROWS))
