"""The training loop of `TorchEstimator`, which runs on every rank."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any

import torch

import horovod.torch as hvd
from horovod.spark.common.job import Batch, Job
from horovod.spark.common.runs import Run, first_epoch, running, stored_checkpoint
from horovod.spark.torch.attach import attach, scale_rates
from horovod.spark.torch.board import open_board
from horovod.spark.torch.losses import Losses, Metrics, aligned, made_losses
from horovod.spark.torch.tensors import device, tensor

Tensors = list[torch.Tensor]


def train(pickle: bytes) -> dict[str, Any] | None:
    """Trains on this rank; rank 0 returns the history and the states of model and optimizer."""
    hvd.init()
    job = Job.unpacked(pickle)
    if job["random_seed"] is not None:
        torch.manual_seed(job["random_seed"] + hvd.rank())
    with running(job, hvd.rank(), hvd.size()) as run:
        return _Training(job, run).whole()


class _Training:
    def __init__(self, job: Job, run: Run) -> None:
        self._job, self._run = job, run
        self._device = device(job["use_gpu"])
        self._model: torch.nn.Module = job["model"].to(self._device)
        optimizer: torch.optim.Optimizer = job["optimizer"]
        attach(optimizer, self._model)
        self._history: list[dict[str, Any]] = []
        self._done = self._restored(optimizer)
        self._optimizer: Any = self._distributed(optimizer)
        self._losses = Losses(
            made_losses(job["loss"], job["loss_constructors"]),
            job["label_cols"],
            job["loss_weights"],
        )
        self._metrics = Metrics(job["metrics"], job["label_cols"])
        self._passes = 0
        self._dtype = next((p.dtype for p in self._model.parameters()), torch.float32)

    def whole(self) -> dict[str, Any] | None:
        """All epochs."""
        job, run = self._job, self._run
        batches = job.train_batches()
        validation = job.val_batches("join") if job.validates else None
        open_board(run)
        run.started(batches.steps, self._done)
        self._call("on_train_begin")
        for epoch in range(self._done, job["epochs"]):
            batches.start_at(epoch)
            self._call("on_epoch_begin", epoch)
            entry: dict[str, Any] = {"epoch": epoch, "train": self._train(batches.epoch())}
            if validation is not None:
                entry["validation"] = self._validate(validation.whole())
            self._history.append(entry)
            self._finish(epoch, entry, batches.steps)
        self._call("on_train_end")
        return self._result() if hvd.rank() == 0 else None

    def _finish(self, epoch: int, entry: dict[str, Any], steps: int) -> None:
        measured = dict(entry["train"])
        measured.update({f"val_{name}": v for name, v in entry.get("validation", {}).items()})
        self._run.finished_epoch(epoch, measured, steps * self._job["batch_size"] * hvd.size())
        if self._run.keeps:
            torch.save({**self._states(), "epochs": epoch + 1}, self._run.checkpoint)
            self._run.sync()
        self._call("on_epoch_end", epoch, measured)

    def _train(self, batches: Iterable[Batch]) -> dict[str, float]:
        self._model.train()
        totals = _Totals(["loss", *self._metrics.names], self._device)
        custom = self._job["train_minibatch_fn"]
        step = self._with(custom) if custom else self._step
        for batch in batches:
            features, labels, weights = self._tensors(batch)
            outputs, loss = step(features, labels, weights)
            measured = self._metrics(*aligned(outputs, labels)) if self._metrics.names else []
            totals.add(batch.rows, [loss.detach(), *measured])
        return totals.averages()

    def _step(
        self, features: Tensors, labels: Tensors, weights: torch.Tensor | None
    ) -> tuple[Any, torch.Tensor]:
        outputs, fitting = aligned(self._model(*features), labels)
        loss = self._losses(outputs, fitting, weights)
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        self._passes += 1
        if self._passes % self._job["backward_passes_per_step"] == 0:
            self._optimizer.step()
            self._optimizer.zero_grad()
        return outputs, loss

    def _with(self, custom: Callable[..., Any]) -> Callable[..., Any]:
        """The user's own step."""

        def step(features: Tensors, labels: Tensors, weights: torch.Tensor | None) -> Any:
            return custom(self._model, self._optimizer, aligned, features, labels, weights)

        return step

    def _validate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Ranks have different numbers of rows, and meet only for the averages."""
        self._model.eval()
        totals = _Totals(["loss", *self._metrics.names], self._device)
        with torch.no_grad():
            for batch in batches:
                features, labels, weights = self._tensors(batch)
                outputs, labels = aligned(self._model(*features), labels)
                loss = self._losses(outputs, labels, weights)
                totals.add(batch.rows, [loss, *self._metrics(outputs, labels)])
        return totals.averages()

    def _tensors(self, batch: Batch) -> tuple[Tensors, Tensors, torch.Tensor | None]:
        features = [tensor(array, self._dtype, self._device) for array in batch.features]
        labels = [tensor(array, self._dtype, self._device) for array in batch.labels]
        weights = batch.weights
        rows = None if weights is None else tensor(weights, self._dtype, self._device)
        return features, labels, rows

    def _restored(self, optimizer: torch.optim.Optimizer) -> int:
        """Continues from the checkpoint of this run if there is one; returns the epochs done."""
        pickle = stored_checkpoint(self._job) if hvd.rank() == 0 else None
        found = None
        if pickle is not None:
            found = torch.load(io.BytesIO(pickle), map_location=self._device, weights_only=True)
            self._model.load_state_dict(found["model"])
            optimizer.load_state_dict(found["optimizer"])
            self._history = found["history"]
        done = 0 if found is None else found["epochs"]
        first: int = hvd.broadcast_object(first_epoch(done, self._job["epochs"]))
        if first == 0:
            self._history = []
        return first

    def _distributed(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        # State that came with the optimizer moves to the device of the model.
        optimizer.load_state_dict(optimizer.state_dict())
        scale_rates(optimizer, hvd.size())
        hvd.broadcast_parameters(self._model.state_dict(), root_rank=0)
        wrapped = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=self._model.named_parameters(),
            compression=self._job["gradient_compression"] or hvd.Compression.none,
            backward_passes_per_step=self._job["backward_passes_per_step"],
        )
        hvd.broadcast_optimizer_state(wrapped, root_rank=0)
        return wrapped

    def _states(self) -> dict[str, Any]:
        """Model and optimizer as one rank would have them."""
        state = self._optimizer.state_dict()
        groups = [dict(group) for group in state["param_groups"]]
        for group in groups:
            if "lr" in group:
                group["lr"] = group["lr"] / hvd.size()
        state = {**state, "param_groups": groups}
        return {"model": self._model.state_dict(), "optimizer": state, "history": self._history}

    def _result(self) -> dict[str, Any]:
        file = io.BytesIO()
        torch.save(self._states(), file)
        return {"states": file.getvalue()}

    def _call(self, method: str, *arguments: Any) -> None:
        for callback in self._job["callbacks"] or ():
            getattr(callback, method, _nothing)(*arguments)


class _Totals:
    """Sums over batches, weighted by rows, whose averages are those of all ranks."""

    def __init__(self, names: list[str], device: torch.device) -> None:
        self._names = names
        self._sums = torch.zeros(len(names) + 1, dtype=torch.float64, device=device)

    def add(self, rows: int, values: list[Any]) -> None:
        """Adds the values of a batch."""
        own = [torch.as_tensor(value, dtype=torch.float64) for value in (*values, 1.0)]
        self._sums += rows * torch.stack([each.to(self._sums.device) for each in own])

    def averages(self) -> dict[str, float]:
        """Those of all ranks, by name."""
        sums = hvd.allreduce(self._sums, op=hvd.Sum, name="estimator.totals")
        return dict(zip(self._names, (sums[:-1] / sums[-1]).tolist()))


def _nothing(*_: Any) -> None:
    pass
