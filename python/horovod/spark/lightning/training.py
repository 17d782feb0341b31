"""The training of Lightning's `TorchEstimator`, which runs on every rank."""

from __future__ import annotations

import inspect
import io
import logging
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

import horovod.torch as hvd
from horovod.lightning import RondeStrategy
from horovod.spark.common.job import Batches, Job
from horovod.spark.common.runs import Run, first_epoch, running, stored_checkpoint
from horovod.spark.lightning.legacy import to_lightning_module
from horovod.spark.torch.board import open_board
from horovod.spark.torch.losses import made_losses
from horovod.spark.torch.tensors import tensor

_CPU = torch.device("cpu")


def train(pickle: bytes) -> dict[str, Any] | None:
    """Trains on this rank; rank 0 returns the history and the state of the model."""
    hvd.init()
    job = Job.unpacked(pickle)
    if job["verbose"] < 2:
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    if job["random_seed"] is not None:
        torch.manual_seed(job["random_seed"] + hvd.rank())
    with running(job, hvd.rank(), hvd.size()) as run:
        return _train(job, run)


def _train(job: Job, run: Run) -> dict[str, Any] | None:
    plain: torch.nn.Module = job["model"]
    module = plain if isinstance(plain, pl.LightningModule) else _lightning(job)
    batches = job.train_batches()
    validation = job.val_batches() if job.validates else None
    following = _Following(job, run, batches.steps)
    checkpoint = _Checkpoint(job, module)
    following.history = checkpoint.history
    trainer = pl.Trainer(**_trainer_options(job, following, batches, validation))
    open_board(run)
    run.started(batches.steps, checkpoint.done)
    if torch.cuda.is_available() and job["use_gpu"]:
        run.say("trains on CPUs: RondeStrategy does not use GPUs in this release")
    batches.start_at(checkpoint.done)
    dtype = next((each.dtype for each in module.parameters()), torch.float32)
    with checkpoint.path() as path:
        trainer.fit(
            module,
            _Feed(job, batches, dtype),
            None if validation is None else _Feed(job, validation, dtype),
            ckpt_path=path,
            **_trusting(trainer.fit),
        )
    if hvd.rank() != 0:
        return None
    file = io.BytesIO()
    torch.save(plain.state_dict(), file)
    return {"state": file.getvalue(), "history": following.history}


def _lightning(job: Job) -> pl.LightningModule:
    return to_lightning_module(
        model=job["model"],
        optimizer=job["optimizer"],
        loss_fns=made_losses(job["loss"], job["loss_constructors"]),
        loss_weights=job["loss_weights"],
        feature_cols=job["feature_cols"],
        label_cols=job["label_cols"],
        sample_weights_col=job["sample_weight_col"],
        validation=job.validates,
        metrics=job["metrics"],
    )


def _trainer_options(
    job: Job, following: pl.Callback, batches: Batches, validation: Batches | None
) -> dict[str, Any]:
    compression = _hook(job["gradient_compression"])
    options = {
        "strategy": RondeStrategy(**({"ddp_comm_hook": compression} if compression else {})),
        "accelerator": "cpu",
        "max_epochs": job["epochs"],
        "limit_train_batches": batches.steps,
        "limit_val_batches": validation.steps if validation is not None else 0,
        "accumulate_grad_batches": job["backward_passes_per_step"],
        "callbacks": [*(job["callbacks"] or ()), following],
        "logger": job["logger"] or False,
        "profiler": job["profiler"],
        "log_every_n_steps": job["log_every_n_steps"],
        "num_sanity_val_steps": 0,
        "enable_checkpointing": any(
            isinstance(each, pl.callbacks.ModelCheckpoint) for each in job["callbacks"] or ()
        ),
        "enable_progress_bar": False,
        "enable_model_summary": job["verbose"] > 1,
        # Each rank reads its own rows.
        "use_distributed_sampler": False,
    }
    return {**options, **(job["trainer_args"] or {})}


def _hook(compression: Any) -> Any:
    """What DistributedDataParallel calls a compression."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    if compression in (None, hvd.Compression.none):
        return None
    if compression is hvd.Compression.fp16:
        return default_hooks.fp16_compress_hook
    if compression is hvd.Compression.bf16:
        return default_hooks.bf16_compress_hook
    raise ValueError(
        f"gradient_compression is {compression!r}; with Lightning it is hvd.Compression.fp16, bf16 "
        "or none"
    )


class _Feed:
    """The batches of a rank as Lightning wants them: dicts of tensors, by column."""

    def __init__(self, job: Job, batches: Batches, dtype: torch.dtype) -> None:
        self._job, self._batches, self._dtype = job, batches, dtype

    def __len__(self) -> int:
        return self._batches.steps

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        job = self._job
        names = [*job["feature_cols"], *job["label_cols"]]
        for batch in self._batches.epoch():
            arrays = dict(zip(names, [*batch.features, *batch.labels]))
            if batch.weights is not None:
                arrays[job["sample_weight_col"]] = batch.weights
            yield {name: tensor(array, self._dtype, _CPU) for name, array in arrays.items()}


class _Following(pl.Callback):
    """Scales the learning rates, and keeps history and checkpoints."""

    def __init__(self, job: Job, run: Run, steps: int) -> None:
        self._job, self._run = job, run
        self._rows = steps * job["batch_size"] * hvd.size()
        self.history: list[dict[str, float]] = []
        self._losses: list[float] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Multiplies the learning rates by the number of ranks."""
        for optimizer in trainer.optimizers:
            _scale(optimizer.param_groups, hvd.size())
        for config in trainer.lr_scheduler_configs:
            rates = getattr(config.scheduler, "base_lrs", None)
            if rates:
                config.scheduler.base_lrs = [rate * hvd.size() for rate in rates]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *_: Any
    ) -> None:
        """Keeps the loss of a batch."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is None:
            return
        self._losses.append(float(loss))
        if self._job["terminate_on_nan"] and not math.isfinite(self._losses[-1]):
            raise ValueError(f"the loss is {self._losses[-1]}, and terminate_on_nan is set")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keeps what was measured, and a checkpoint."""
        own = torch.tensor([sum(self._losses), len(self._losses)], dtype=torch.float64)
        total, count = hvd.allreduce(own, op=hvd.Sum, name="estimator.losses").tolist()
        self._losses.clear()
        measured = {"loss": total / count} if count else {}
        measured.update({name: float(value) for name, value in trainer.callback_metrics.items()})
        self.history.append(measured)
        self._run.finished_epoch(trainer.current_epoch, measured, self._rows)
        if self._job.remote.saving_runs:
            # All ranks take part, rank 0 writes.
            path = self._run.checkpoint if self._run.keeps else "unused"
            trainer.save_checkpoint(path, weights_only=False)
            self._run.sync()

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Writes learning rates as one rank would have them, and the history."""
        checkpoint["ronde_history"] = list(self.history)
        for state in checkpoint.get("optimizer_states", ()):
            state["param_groups"] = [dict(group) for group in state["param_groups"]]
            _scale(state["param_groups"], 1 / hvd.size())
        for state in checkpoint.get("lr_schedulers", ()):
            if "base_lrs" in state:
                state["base_lrs"] = [rate / hvd.size() for rate in state["base_lrs"]]


class _Checkpoint:
    """The checkpoint that the store has of this run, if any."""

    def __init__(self, job: Job, module: pl.LightningModule) -> None:
        self._content = stored_checkpoint(job)
        self.done = 0
        self.history: list[dict[str, float]] = []
        if self._content is None:
            return
        found = torch.load(io.BytesIO(self._content), map_location="cpu", weights_only=False)
        self.done = first_epoch(len(found["ronde_history"]), job["epochs"])
        if self.done:
            self.history = found["ronde_history"]
        else:
            # A run that has done all of its epochs starts again from its weights.
            module.load_state_dict(found["state_dict"])
            self._content = None

    @contextmanager
    def path(self) -> Iterator[str | None]:
        """The checkpoint as a file of this rank; None if training starts anew."""
        if self._content is None:
            yield None
            return
        with tempfile.TemporaryDirectory(prefix="ronde-run-") as folder:
            path = Path(folder) / "last.ckpt"
            path.write_bytes(self._content)
            yield str(path)


def _scale(groups: list[dict[str, Any]], factor: float) -> None:
    for group in groups:
        for name in ("lr", "initial_lr"):
            if name in group:
                group[name] = group[name] * factor


def _trusting(fit: Any) -> dict[str, Any]:
    """A checkpoint of our own may hold what Lightning wrote of the user's hyperparameters."""
    return {"weights_only": False} if "weights_only" in inspect.signature(fit).parameters else {}
