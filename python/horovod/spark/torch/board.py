"""Logs for TensorBoard, where it is installed."""

from __future__ import annotations

from typing import Any

from horovod.spark.common.runs import Run


def open_board(run: Run) -> None:
    """Has rank 0 log what each epoch measures."""
    if not run.keeps:
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return
    writer: Any = SummaryWriter
    run.board = writer(str(run.logs))
