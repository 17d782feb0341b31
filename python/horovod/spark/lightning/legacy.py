"""A plain torch module, its optimizer and its losses as a LightningModule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch

from horovod.spark.torch.attach import attach
from horovod.spark.torch.losses import Losses, Metrics, aligned

__all__ = [
    "to_lightning_module",
]


def to_lightning_module(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fns: Any,
    loss_weights: Sequence[float] | None = None,
    feature_cols: Sequence[str] = (),
    label_cols: Sequence[str] = (),
    sample_weights_col: str | None = None,
    validation: Any = None,
    metrics: Any = None,
) -> pl.LightningModule:
    """Make a LightningModule of what a `TorchEstimator` without Lightning takes.

    Args:
        model: The module.
        optimizer: Optimizer of its parameters.
        loss_fns: One loss, or one for each label.
        loss_weights: Weight of the loss of each label (default: equal ones).
        feature_cols: Keys of a batch that the model reads (default: none).
        label_cols: Keys that it predicts (default: none).
        sample_weights_col: Key with the weights of the rows (default: None).
        validation: Whether there is a validation step, too (default: None).
        metrics: Functions `metric(output, label)` (default: None).

    Returns:
        The LightningModule; its attribute `model` is the module.
    """
    losses, measured = Losses(loss_fns, label_cols, loss_weights), Metrics(metrics, label_cols)
    module: Any = pl.LightningModule

    class Plain(module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *features: torch.Tensor) -> Any:
            return self.model(*features)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            attach(optimizer, self.model)
            return optimizer

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            return self._measured(batch, "")

        def _measured(self, batch: dict[str, torch.Tensor], prefix: str) -> torch.Tensor:
            outputs = self.model(*(batch[name] for name in feature_cols))
            outputs, labels = aligned(outputs, [batch[name] for name in label_cols])
            rows = batch[sample_weights_col] if sample_weights_col else None
            loss = losses(outputs, labels, rows)
            values = dict(zip(measured.names, measured(outputs, labels)))
            named = {f"{prefix}{name}": value for name, value in {"loss": loss, **values}.items()}
            self.log_dict(
                named, on_step=False, on_epoch=True, sync_dist=True, batch_size=len(labels[0])
            )
            return loss

    class PlainWithValidation(Plain):
        def validation_step(self, batch: dict[str, torch.Tensor], _: int) -> None:
            self._measured(batch, "val_")

    made: pl.LightningModule = PlainWithValidation() if validation else Plain()
    return made
