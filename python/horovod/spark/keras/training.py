"""The training of `KerasEstimator`, which runs on every rank."""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from horovod._keras.variables import assign, value_of, variables_of
from horovod.spark.common.job import Batches, Job
from horovod.spark.common.runs import Run, first_epoch, running
from horovod.spark.keras.feeding import arguments, shapes_of
from horovod.spark.keras.saved import SavedModel, SavedOptimizer, save

_HISTORY = "history.json"
_OPTIMIZER = "checkpoint.optimizer.npz"


def train(pickle: bytes) -> dict[str, Any] | None:
    """Trains on this rank; rank 0 returns the history and the model."""
    job = Job.unpacked(pickle)
    saved: SavedModel = job["model"]
    keras = saved.name.load()
    hvd = saved.name.load_horovod()
    hvd.init()
    if job["random_seed"] is not None:
        keras.utils.set_random_seed(job["random_seed"] + hvd.rank())
    if saved.name.backend == "tensorflow":
        _choose_gpu(hvd, job["use_gpu"])
    with running(job, hvd.rank(), hvd.size()) as run:
        return _Training(job, run, keras, hvd).whole()


class _Training:
    def __init__(self, job: Job, run: Run, keras: Any, hvd: Any) -> None:
        self._job, self._run, self._keras, self._hvd = job, run, keras, hvd
        self._kept = _Kept(job)
        saved: SavedModel = job["model"]
        self._model = (self._kept.model(saved) or saved).load()
        self._done = first_epoch(self._kept.epochs, job["epochs"])
        self._compile(job["optimizer"])

    def whole(self) -> dict[str, Any] | None:
        """All epochs."""
        job, run = self._job, self._run
        batches = job.train_batches()
        batches.start_at(self._done)
        run.started(batches.steps, self._done)
        options: dict[str, Any] = {}
        if job.validates:
            validation = job.val_batches()
            options["validation_data"] = self._fed(validation)
            options["validation_steps"] = validation.steps
        self._model.fit(
            self._fed(batches),
            steps_per_epoch=batches.steps,
            epochs=job["epochs"],
            initial_epoch=self._done,
            shuffle=False,
            verbose=2 if job["verbose"] > 1 and self._hvd.rank() == 0 else 0,
            callbacks=self._callbacks(batches.steps),
            **options,
        )
        if self._hvd.rank() != 0:
            return None
        model = SavedModel.of(self._model, job["custom_objects"])
        return {"history": self._kept.history, "model": model}

    def _compile(self, saved: SavedOptimizer) -> None:
        job, hvd = self._job, self._hvd
        optimizer = saved.load(hvd.size())
        options: dict[str, Any] = {}
        if job["backward_passes_per_step"] > 1:
            options["backward_passes_per_step"] = job["backward_passes_per_step"]
        optimizer = hvd.DistributedOptimizer(
            optimizer,
            compression=job["gradient_compression"] or hvd.Compression.none,
            **options,
        )
        if self._done:
            self._kept.restore(self._keras, optimizer, self._model, hvd.size())
        measured = "weighted_metrics" if job["sample_weight_col"] else "metrics"
        self._model.compile(
            optimizer=optimizer,
            loss=job["loss"],
            loss_weights=job["loss_weights"],
            **{measured: job["metrics"] or None},
        )

    def _callbacks(self, steps: int) -> list[Any]:
        job, hvd = self._job, self._hvd
        found = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            *(job["callbacks"] or ()),
        ]
        if self._run.keeps:
            own = job["checkpoint_callback"]
            if own is not None:
                own.filepath = str(self._run.checkpoint.with_suffix(".keras"))
                found.append(own)
            if (
                importlib.util.find_spec("tensorboard")
                and job["model"].name.backend == "tensorflow"
            ):
                found.append(self._keras.callbacks.TensorBoard(str(self._run.logs)))
        return [*found, self._ending(steps)]

    def _ending(self, steps: int) -> Any:
        """A callback for the end of an epoch."""
        training, rows = self, steps * self._job["batch_size"] * self._hvd.size()
        callback: Any = self._keras.callbacks.Callback

        class Ending(callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                measured = {name: float(value) for name, value in (logs or {}).items()}
                training._finish(epoch, measured, rows)

        return Ending()

    def _finish(self, epoch: int, measured: dict[str, float], rows: int) -> None:
        self._kept.add(epoch, measured)
        self._run.finished_epoch(epoch, measured, rows)
        if self._run.keeps:
            self._kept.write(self._keras, self._model, self._run, self._hvd.size())
            self._run.sync()

    def _fed(self, batches: Batches) -> Iterator[tuple[Any, ...]]:
        """Batches in the shapes of the model's inputs and outputs."""
        inputs, outputs = shapes_of(self._model, "inputs"), shapes_of(self._model, "outputs")
        floats = self._keras.backend.floatx()
        for batch in batches.forever():
            yield arguments(batch, inputs, outputs, floats)


class _Kept:
    """What the store has of this run beside the model: history and state of the optimizer."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._store: Any = job.remote.store
        self.epochs = 0
        self.history: dict[str, list[float]] = {}
        self._rate: float | None = None
        found = self._read(_HISTORY)
        if found is not None:
            kept = json.loads(found)
            self.epochs, self._rate = kept["epochs"], kept["learning_rate"]
            if first_epoch(self.epochs, job["epochs"]):
                self.history = kept["history"]

    def model(self, like: SavedModel) -> SavedModel | None:
        """The model of the checkpoint, if there is one."""
        if not self.epochs:
            return None
        content = self._store.read(self._job.remote.checkpoint_path)
        return SavedModel(like.name, content, like.custom_objects)

    def restore(self, keras: Any, optimizer: Any, model: Any, size: int) -> None:
        """Gives an optimizer the state that it had."""
        content = self._read(_OPTIMIZER)
        if content is None:
            return
        optimizer.build(model.trainable_variables)
        with np.load(io.BytesIO(content)) as values:
            for variable, name in zip(variables_of(optimizer), values.files):
                assign(keras, variable, values[name])
        if self._rate is not None:
            assign(keras, optimizer.learning_rate, self._rate * size)

    def add(self, epoch: int, measured: dict[str, float]) -> None:
        """Adds what an epoch has measured."""
        self.epochs = epoch + 1
        for name, value in measured.items():
            self.history.setdefault(name, []).append(value)

    def write(self, keras: Any, model: Any, run: Run, size: int) -> None:
        """Writes all of it."""
        optimizer = model.optimizer
        folder = run.checkpoint.parent
        file = folder / "model.keras"
        save(model, file)
        file.replace(run.checkpoint)
        values = [value_of(keras, variable) for variable in variables_of(optimizer)]
        np.savez(folder / _OPTIMIZER, *values)
        saved: SavedOptimizer = self._job["optimizer"]
        rate = None
        if saved.rate is not None:
            rate = float(value_of(keras, optimizer.learning_rate)) / size
        kept = {"epochs": self.epochs, "learning_rate": rate, "history": self.history}
        # Files are copied in the order of their names: what this one speaks of is there before it.
        (folder / _HISTORY).write_text(json.dumps(kept))

    def _read(self, name: str) -> bytes | None:
        path = f"{self._job.remote.run_path}/{name}"
        if not self._job.remote.saving_runs or not self._store.exists(path):
            return None
        content: bytes = self._store.read(path)
        return content


def _choose_gpu(hvd: Any, wanted: bool) -> None:
    import tensorflow as tf

    devices = tf.config.list_physical_devices("GPU")
    if devices:
        own = devices[hvd.local_rank() % len(devices)]
        tf.config.set_visible_devices([own] if wanted else [], "GPU")
