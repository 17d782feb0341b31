"""Compares `ParquetReader` with torch's own `DataLoader`: `python bench/reader.py`.

All ways deliver batches of tensors in one process, and rounds of all ways alternate; each goes
first in turn. A round is an epoch, and its figure is the rows per second, with everything between
the file and the batches. `torch, rows` is a dataset that reads Parquet as a stream of rows, which
`DataLoader` collates; with two worker processes, each reads half of the row groups. `torch, in
memory` has read the file before, which is not counted, and shuffles. `torch, by hand` slices what
pyarrow decodes, in order and without a thread: it is what reading costs.
"""

import argparse
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import figures
import job
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from record import RESULTS, processor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

from horovod.data import ParquetReader
from horovod.torch.data import BatchLoader

WIDTH = 20
ROW_GROUP = 20_000


def main():
    options = parse()
    before = job.machine()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "part.parquet"
        write(file, options.rows)
        rates = measure(ways(file, options.batch), options.rounds, options.rows)
    text = table(rates, options, before)
    print(text, end="")
    document = {"machine": before, "rows": options.rows, "batch": options.batch, "rates": rates}
    stem = RESULTS / f"reader-{processor()}"
    if options.save:
        stem.with_suffix(".md").write_text(text)
    target = stem.with_suffix(".json") if options.save else options.json
    if target:
        figures.save(target, document)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--save", action="store_true", help="keep it under bench/results")
    return parser.parse_args()


def write(file, rows):
    """A list of float32 and a label in each row."""
    random = np.random.default_rng(0)
    values = pa.array(random.random(rows * WIDTH, np.float32))
    lists = pa.FixedSizeListArray.from_arrays(values, WIDTH)
    labels = random.integers(0, 10, rows)
    pq.write_table(pa.table({"x": lists, "label": labels}), file, row_group_size=ROW_GROUP)


def ways(file, batch):
    """Every way to read the file: a function that makes an iterator of batches."""
    warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
    everything = pq.read_table(file)
    tensors = TensorDataset(features(everything), torch.tensor(everything["label"].to_numpy()))
    shuffled = BatchLoader(ParquetReader(file, batch, uneven="join"))
    ordered = BatchLoader(ParquetReader(file, batch, uneven="join", shuffle=False))
    return {
        "ParquetReader, shuffled": lambda: shuffled,
        "ParquetReader, in order": lambda: ordered,
        "torch, rows": lambda: DataLoader(Rows(file), batch),
        "torch, rows, 2 workers": lambda: DataLoader(Rows(file), batch, num_workers=2),
        "torch, in memory": lambda: DataLoader(tensors, batch, shuffle=True),
        "torch, in memory, 2 workers": lambda: DataLoader(
            tensors, batch, shuffle=True, num_workers=2
        ),
        "torch, by hand, in order": lambda: by_hand(file, batch),
    }


class Rows(IterableDataset):
    """The rows of a file, each a dict."""

    def __init__(self, file):
        self._file = file

    def __iter__(self):
        worker, parquet = get_worker_info(), pq.ParquetFile(self._file)
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        groups = list(range(first, parquet.num_row_groups, step))
        for batch in parquet.iter_batches(row_groups=groups):
            x = features(batch)
            for values, label in zip(x, batch.column("label").to_pylist()):
                yield {"x": values, "label": label}


def by_hand(file, batch):
    for part in pq.ParquetFile(file).iter_batches(batch):
        yield {"x": features(part), "label": torch.from_numpy(part.column("label").to_numpy())}


def features(table):
    column = table["x"]
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return torch.from_numpy(values.flatten().to_numpy()).reshape(-1, WIDTH)


def measure(ways, rounds, rows):
    """Rows per second of every way in every round."""
    rates = {name: [] for name in ways}
    names = list(ways)
    for number in range(rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            begin = time.perf_counter()
            seen = sum(labels_of(batch) for batch in ways[name]())
            seconds = time.perf_counter() - begin
            assert seen == rows, f"{name} delivered {seen} rows"
            if number:  # the first round warms up
                rates[name].append(rows / seconds)
    return rates


def labels_of(batch):
    return len(batch[1] if isinstance(batch, (list, tuple)) else batch["label"])


def table(rates, options, machine):
    base = rates["ParquetReader, shuffled"]
    lines = [
        f"# {options.rows} rows of Parquet, in batches of {options.batch}\n",
        f"{job.described(machine)}; PyTorch {torch.__version__}, pyarrow {pa.__version__}. A row "
        f"has {WIDTH} float32 and a label.",
        "Thousands of rows per second: median (middle 80 %).\n",
        "| way | thousand rows/s | `ParquetReader`, shuffled, is |",
        "| --- | --- | --- |",
    ]
    for name, each in rates.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(base, each))
        lines.append(f"| {name} | {job.spelled(each, 1e-3, 0)} | {ratio:.2f} times as fast |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
