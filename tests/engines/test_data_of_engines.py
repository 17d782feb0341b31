"""What Spark and Ray Data hand over, read into batches."""

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

from horovod.data import ParquetReader  # noqa: E402

ROWS = 203


@pytest.fixture(scope="module")
def spark(spark_cluster):
    with spark_cluster.session() as session:
        yield session


def test_two_ranks_share_the_rows_that_spark_has_written_with_their_vectors(spark, tmp_path):
    from pyspark.ml.linalg import Vectors

    path = str(tmp_path / "rows")
    rows = [
        (i, Vectors.dense([i, 1.0, 2.0]) if i % 2 else Vectors.sparse(3, {1: float(i)}))
        for i in range(ROWS)
    ]
    spark.createDataFrame(rows, ["number", "vector"]).write.parquet(path)
    seen = {}
    for rank in range(2):
        reader = ParquetReader(path, 10, uneven="join", shard=(rank, 2))
        for batch in reader:
            seen.update(zip(batch["number"].tolist(), batch["vector"].tolist()))
        assert len(seen) == [ROWS // 2, ROWS][rank]
    assert seen == {i: [i, 1.0, 2.0] if i % 2 else [0.0, float(i), 0.0] for i in range(ROWS)}


def test_a_task_reads_its_partition_as_it_comes_from_spark(spark):
    from pyspark.sql.functions import array, col

    def batches_of(partition):
        from horovod.data import ArrowReader

        reader = ArrowReader(partition, 10, uneven="join")
        for _ in range(2):
            for batch in reader:
                assert batch["pair"].shape == (len(batch["id"]), 2)
                assert (batch["pair"][:, 1] == batch["id"] * 2).all()
                yield pa.RecordBatch.from_pydict({"id": batch["id"]})

    frame = spark.range(0, ROWS, 1, 2).withColumn("pair", array(col("id"), col("id") * 2))
    ids = [row.id for row in frame.mapInArrow(batches_of, "id bigint").collect()]
    assert sorted(ids) == sorted([*range(ROWS), *range(ROWS)])


# Ray Data starts an actor of its own, and all that it imports.
@pytest.mark.timeout(180, func_only=True)
def test_ranks_on_ray_read_their_shards_and_drop_what_others_lack(ray_cluster):
    import ray

    @ray.remote(num_cpus=0.5)
    class Rank:
        def invitation(self):
            import horovod

            return horovod.open_rendezvous(2)

        def epochs(self, rank, invitation, shard):
            import horovod.raw as hvd
            from horovod.data import RayReader

            hvd.init(rank=rank, size=2, invitation=invitation)
            # Ray waits until both have begun an epoch.
            reader = RayReader(shard, 10, uneven="join", shuffle=False)
            batches = list(reader)
            # Ray's object store is read-only; what spans two blocks is a copy.
            views = [batch["data"] for batch in batches if not batch["data"].flags.owndata]
            assert views and not any(view.flags["W"] for view in views)
            everything = [self.numbers(batch) for batch in batches]
            hvd.join()
            whole = [self.numbers(batch) for batch in RayReader(shard, 10)]
            hvd.shutdown()
            return everything, whole

        def numbers(self, batch):
            assert batch["data"].shape[1:] == (2, 3)
            return batch["data"][:, 0, 0].tolist()

    tensors = np.arange(ROWS)[:, None, None] * np.ones((1, 2, 3), np.int64)
    data = ray.data.from_numpy(np.array_split(tensors, 6))
    ranks = [Rank.remote() for _ in range(2)]
    invitation = ray.get(ranks[0].invitation.remote())
    shards = data.streaming_split(2, equal=False)
    running = [
        actor.epochs.remote(rank, invitation, shards[rank]) for rank, actor in enumerate(ranks)
    ]
    (everything, whole), (others_everything, others_whole) = ray.get(running)
    numbers = [number for batch in everything + others_everything for number in batch]
    assert sorted(numbers) == list(range(ROWS))
    assert len(whole) == len(others_whole) > 0
    assert {len(batch) for batch in whole + others_whole} == {10}
