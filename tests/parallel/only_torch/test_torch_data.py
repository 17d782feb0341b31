"""Readers of `horovod.data` on several ranks: shares, agreement, and training until all join."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

import torch  # noqa: E402

import horovod.torch as hvd  # noqa: E402
from horovod.data import ArrowReader, ParquetReader  # noqa: E402
from horovod.torch.data import BatchLoader  # noqa: E402

ROWS = 203


@pytest.fixture
def parquet():
    """A folder that rank 0 writes, of row groups of 20 rows."""
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None)
    if hvd.rank() == 0:
        x = np.arange(ROWS, dtype=np.float32)
        pq.write_table(pa.table({"x": x, "y": 3 * x}), f"{folder}/part.parquet", row_group_size=20)
    hvd.barrier()
    yield folder
    hvd.barrier()
    if hvd.rank() == 0:
        (Path(folder) / "part.parquet").unlink()
        os.rmdir(folder)


def everyones(values):
    return hvd.allgather_object(list(values))


def rows(reader):
    return [x for batch in reader for x in batch["x"].tolist()]


def own_rows(rank):
    """Each rank has 8 rows more than the one before."""
    return pa.table({"x": np.arange(5 + 8 * rank)})


class OwnStream:
    def __call__(self):
        return own_rows(hvd.rank()).to_batches(max_chunksize=3)


def test_the_rows_of_parquet_are_dealt_out_to_the_world(parquet):
    reader = ParquetReader(parquet, 10, uneven="join")
    for _ in range(2):
        shares = everyones(rows(reader))
        assert sorted(x for share in shares for x in share) == list(range(ROWS))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_torch_workers_read_the_rows_of_their_rank(parquet):
    loader = BatchLoader(ParquetReader(parquet, 10, uneven="join"), num_workers=2)
    shares = everyones(rows(loader))
    assert sorted(x for share in shares for x in share) == list(range(ROWS))


@pytest.mark.parametrize("source", ["table", "stream"])
@pytest.mark.parametrize("ahead", [0, 1, 2, 8])
def test_ranks_drop_what_others_lack(source, ahead):
    data = own_rows(hvd.rank()) if source == "table" else OwnStream()
    reader = ArrowReader(data, 2, ahead=ahead)
    for _ in range(2):
        assert everyones(len(batch["x"]) for batch in reader) == [[2, 2]] * hvd.size()
        # A collective of the program in every step, as in training.
        for step, batch in enumerate(reader):
            total = hvd.allreduce(torch.tensor(len(batch["x"])), op=hvd.Sum, name=f"step{step}")
            assert total == 2 * hvd.size()


def test_ranks_repeat_what_they_have_until_the_largest_is_done():
    reader = ArrowReader(own_rows(hvd.rank()), 4, uneven="repeat")
    most = -(-(5 + 8 * (hvd.size() - 1)) // 4)
    for _ in range(2):
        seen = rows(reader)
        assert everyones([len(seen)]) == [[most * 4]] * hvd.size()
        assert set(seen) == set(range(5 + 8 * hvd.rank()))
    with pytest.raises(TypeError, match="depends on the other ranks' rows"):
        len(reader)


def test_a_loop_that_ends_at_the_same_step_on_all_ranks_leaves_nothing_behind():
    reader = ArrowReader(OwnStream(), 1, ahead=2)
    for _ in range(3):
        for step, _ in enumerate(reader):
            if step == 2:
                break
    assert len(list(reader)) == 5


def test_a_failing_rank_raises_its_error_and_the_others_end_their_epoch():
    def failing():
        yield own_rows(0)
        if hvd.rank() == 0:
            raise OSError("the file is gone")
        yield own_rows(5)

    reader = ArrowReader(failing, 1, ahead=4)
    seen = []
    try:
        seen.extend(len(batch["x"]) for batch in reader)
        failure = None
    except OSError as error:
        failure = str(error)
    assert len(seen) <= 5
    assert everyones([failure]) == [["the file is gone"]] + [[None]] * (hvd.size() - 1)


def test_a_rank_without_rows_is_an_error_on_that_rank_before_training():
    reader = ArrowReader(own_rows(0).slice(0, 5 * (hvd.rank() > 0)), 2, uneven="repeat")
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="0 rows on this rank, and 5 on another"):
            next(iter(reader))
    else:
        assert len(next(iter(reader))["x"]) == 2


def test_training_on_all_rows_ends_when_all_ranks_have_joined(parquet):
    """With 203 rows, some ranks have one more batch of one row than the others."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 1e-5), model.named_parameters()
    )
    size = ROWS // hvd.size()
    reader = ParquetReader(parquet, size, uneven="join", seed=2)
    steps = 0
    for _ in range(200):
        for batch in BatchLoader(reader):
            optimizer.zero_grad()
            loss = (model(batch["x"][:, None]) - batch["y"][:, None]).square().mean()
            loss.backward()
            optimizer.step()
            steps += 1
        last = hvd.join()
    assert sorted(count for [count] in everyones([steps]))[-1] == 400
    hvd.broadcast_parameters(model.state_dict(), last)
    assert model.weight.item() == pytest.approx(3, abs=0.05)
