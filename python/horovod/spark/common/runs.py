"""A run on its rank 0: the checkpoint in the store, logs for TensorBoard, and lines for people."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from horovod.spark.common.job import Job


class Run:
    """What a rank keeps of a run; only rank 0 writes and prints anything.

    Args:
        job: The job.
        rank: This rank.
        size: Number of ranks.
        folder: Where rank 0 writes what is copied into the store; None if nothing is kept.
    """

    def __init__(self, job: Job, rank: int, size: int, folder: Path | None) -> None:
        self._job, self._rank, self._size = job, rank, size
        self._folder = folder
        # A writer for TensorBoard, if the framework has one.
        self.board: Any = None
        self._since = time.monotonic()

    @property
    def keeps(self) -> bool:
        """Whether this rank writes checkpoints and logs."""
        return self._folder is not None

    @property
    def checkpoint(self) -> Path:
        """Where to write the checkpoint."""
        assert self._folder is not None
        return self._folder / self._job.remote.checkpoint_filename

    @property
    def logs(self) -> Path:
        """Where to write logs."""
        assert self._folder is not None
        return self._folder / self._job.remote.logs_subdir

    def sync(self) -> None:
        """Copies what was written into the store; the next epoch starts after that."""
        if self._folder is None:
            return
        try:
            self._job.remote.sync(str(self._folder))
        except OSError as error:
            raise RuntimeError(
                f"the checkpoint could not be written to `{self._job.remote.run_path}`: {error}\n"
                "hint: the store must be a place that all executors can write, such as hdfs:// or "
                "s3://; with save_runs=False it keeps no checkpoints"
            ) from error
        self._since = time.monotonic()

    def say(self, text: str) -> None:
        """Prints a line."""
        if self._rank == 0 and self._job["verbose"]:
            print(f"{self._job.run_id}: {text}", flush=True)

    def started(self, steps: int, done: int) -> None:
        """Says what begins."""
        rows, ranks = self._job.data.train_rows, self._size
        resumed = f", resumed after epoch {done}" if done else ""
        self.say(
            f"{ranks} rank{'s' if ranks > 1 else ''}, {rows:,} rows, {steps:,} steps of "
            f"{self._job['batch_size']} rows each{resumed}"
        )
        self._since = time.monotonic()

    def finished_epoch(self, number: int, measured: Mapping[str, float], rows: int) -> None:
        """Says what an epoch has measured, and logs it."""
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        figures = ", ".join(f"{name} {value:.4g}" for name, value in measured.items())
        rate = rows / max(seconds, 1e-9)
        whole = self._job["epochs"]
        self.say(f"epoch {number + 1}/{whole}: {figures} ({seconds:.1f} s, {rate:,.0f} rows/s)")
        if self.board is not None:
            for name, value in measured.items():
                self.board.add_scalar(name, value, number)
            self.board.flush()

    def close(self) -> None:
        """Ends logging."""
        if self.board is not None:
            self.board.close()


@contextmanager
def running(job: Job, rank: int, size: int) -> Iterator[Run]:
    """A run for as long as training lasts."""
    # Lines that a pipe holds back are of no use to somebody who waits.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)
    if rank != 0 or not job.remote.saving_runs:
        yield Run(job, rank, size, None)
        return
    with job.remote.get_local_output_dir() as folder:
        run = Run(job, rank, size, Path(folder))
        try:
            yield run
        finally:
            run.close()


def stored_checkpoint(job: Job) -> bytes | None:
    """The checkpoint of this run that the store has, if any."""
    store: Any = job.remote.store
    if not job.remote.saving_runs or not store.exists(job.remote.checkpoint_path):
        return None
    content: bytes = store.read(job.remote.checkpoint_path)
    return content


def first_epoch(done: int, epochs: int) -> int:
    """Where a run goes on: after the epochs it has done, or from the start if those were all."""
    return done if done < epochs else 0
