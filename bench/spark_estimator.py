"""Compares TorchEstimator with a script under horovodrun: `python bench/spark_estimator.py`.

Both train the same small network on the same Parquet, a million rows of 20 numbers that Spark has
written: the estimator in tasks of a standalone Spark cluster on this machine, whose session is
open, and the script, which is what a user would write without Spark, under `horovodrun`. Both ways
alternate. The whole time is that of `fit_on_parquet`, or of the command, with the start of the
ranks and the import of torch; the time of an epoch is taken inside, on rank 0. The estimator also
writes a checkpoint. What Spark needs to write the Parquet is measured once. Each rank computes
with one thread.
"""

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from io import StringIO
from pathlib import Path

import figures
import job
import torch

FEATURES = 20
ESTIMATOR, SCRIPT = "TorchEstimator", "script, horovodrun"
EPOCH = re.compile(r"epoch \d+/\d+: .*?\((?P<seconds>[\d.]+) s, ")


def main():
    options = parse()
    if job.is_rank():
        script(options)
        return
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "engines"))
    from spark_cluster import SparkCluster

    os.environ.update(PYSPARK_PYTHON=sys.executable, OMP_NUM_THREADS="1")
    machine = job.machine()
    with tempfile.TemporaryDirectory() as folder, SparkCluster(Path(folder)) as cluster:
        store = Path(folder) / "store"
        with cluster.session() as spark:
            preparing = prepare(spark, store, options)
            whole, epochs = measure(store, options)
    table = shown(preparing, whole, epochs, options, machine)
    print(table, end="")
    if options.save:
        stem = job.RESULTS / f"spark-estimator-{job.processor()}-{options.ranks}"
        stem.with_name(stem.name + ".md").write_text(table)
        document = {"machine": machine, "ranks": options.ranks, "rows": options.rows}
        document |= {"seconds to write": preparing, "seconds": whole, "seconds of epochs": epochs}
        figures.save(stem.with_name(stem.name + ".json"), document)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--data", help="the Parquet, for the ranks of the script")
    job.add_options(parser)
    return parser.parse_args()


def prepare(spark, store, options):
    """Has the estimator's own code write the Parquet; returns the seconds."""
    from pyspark.sql import functions

    from horovod.spark.common.store import Store
    from horovod.spark.common.util import prepare_data

    numbers = [functions.rand(seed).cast("float") for seed in range(FEATURES)]
    rows = spark.range(0, options.rows, 1, 8).select(functions.array(*numbers).alias("x"))
    rows = rows.withColumn("y", functions.expr("aggregate(x, 0F, (sum, each) -> sum + each)"))
    start = time.perf_counter()
    data = prepare_data(options.ranks, Store.create(str(store)), rows, ["y"], ["x"])
    seconds = time.perf_counter() - start
    options.data = data.train_path
    options.number = data.dataset_idx
    return seconds


def measure(store, options):
    """The seconds of all rounds, whole and by epoch."""
    whole, epochs = {ESTIMATOR: [], SCRIPT: []}, {ESTIMATOR: [], SCRIPT: []}
    ways = {ESTIMATOR: lambda: by_estimator(store, options), SCRIPT: lambda: by_script(options)}
    for number in range(-1, options.rounds):
        for way in sorted(ways, reverse=number % 2 == 0):
            start = time.perf_counter()
            output = ways[way]()
            seconds = time.perf_counter() - start
            # The first round finds nothing in the caches of the file system.
            if number >= 0:
                whole[way].append(seconds)
                epochs[way] += [float(found["seconds"]) for found in EPOCH.finditer(output)]
    return whole, epochs


def by_estimator(store, options):
    from horovod.spark.common.backend import SparkBackend
    from horovod.spark.common.store import Store
    from horovod.spark.torch import TorchEstimator

    output = StringIO()
    env = {"OMP_NUM_THREADS": "1"}
    model = network()
    TorchEstimator(
        backend=SparkBackend(options.ranks, env=env, stdout=output, stderr=output),
        store=Store.create(str(store)),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.001),
        loss=torch.nn.functional.mse_loss,
        feature_cols=["x"],
        label_cols=["y"],
        batch_size=options.batch,
        epochs=options.epochs,
        run_id=f"bench-{time.monotonic_ns()}",
    ).fit_on_parquet(dataset_idx=options.number)
    return output.getvalue()


def by_script(options):
    flags = ["--epochs", options.epochs, "--batch", options.batch, "--data", options.data]
    command = [job.launcher(), "-np", str(options.ranks), sys.executable, __file__]
    done = subprocess.run(
        [*command, *map(str, flags)], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def script(options):
    """Training without Spark, on each rank."""
    import horovod.torch as hvd
    from horovod.data import ParquetReader

    hvd.init()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001 * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    reader = ParquetReader(options.data, options.batch, columns=["x", "y"], uneven="repeat")
    for epoch in range(options.epochs):
        start = time.perf_counter()
        total = torch.zeros(())
        for batch in reader:
            x, y = torch.from_numpy(batch["x"]), torch.from_numpy(batch["y"])
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y.reshape(-1, 1))
            loss.backward()
            optimizer.step()
            total += loss.detach()
        average = float(hvd.allreduce(total)) / len(reader)
        seconds = time.perf_counter() - start
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}/{options.epochs}: loss {average:.4g} ({seconds:.3f} s, )")


def network():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(FEATURES, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)]
    return torch.nn.Sequential(*layers)


def shown(preparing, whole, epochs, options, machine):
    """A table with medians and the middle 80 %."""
    lines = [
        f"# TorchEstimator on {options.rows:,} rows, {options.ranks} ranks\n",
        f"{job.described(machine)}; torch {torch.__version__}, Python {platform.python_version()}.",
        f"{options.rounds} rounds, {options.epochs} epochs of batches of {options.batch} rows per",
        "rank. Median (middle 80 %).\n",
        "| way | seconds | seconds of an epoch | rows/s in an epoch |",
        "| --- | --- | --- | --- |",
    ]
    for way, own in whole.items():
        rate = options.rows / statistics.median(epochs[way])
        times = f"{job.spelled(own, 1, 1)} | {job.spelled(epochs[way], 1, 2)}"
        lines.append(f"| {way} | {times} | {rate:,.0f} |")
    more = statistics.median(a - b for a, b in zip(whole[ESTIMATOR], whole[SCRIPT]))
    lines.append(f"\nThe estimator takes {more:.1f} s more than the script, in the median round.")
    lines.append(f"Spark writes the Parquet once in {preparing:.1f} s.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
