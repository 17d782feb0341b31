"""Trains with Lightning 2: the Trainer runs the loop, Ronde's strategy communicates.

`python train.py` or `horovodrun -np 2 python train.py`. The images (1,797 handwritten digits) come
with scikit-learn.
"""

import argparse

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from horovod.lightning import RondeStrategy


def main():
    options = parse()
    pl.seed_everything(42, verbose=False)
    train, test = digits()
    trainer = pl.Trainer(
        strategy=RondeStrategy(),
        accelerator="cpu",
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
    )
    model = Reader()
    # Lightning gives each rank its share of both datasets.
    trainer.fit(model, DataLoader(train, 32, shuffle=True), DataLoader(test, 60))
    if trainer.is_global_zero:
        ranks = "rank" if trainer.world_size == 1 else "ranks"
        print(f"{trainer.world_size} {ranks}, {trainer.global_step} steps each")
        print(f"accuracy {trainer.callback_metrics['accuracy']:.3f}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    return parser.parse_args()


def digits():
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32) / 16
    data = TensorDataset(images, torch.tensor(labels))
    generator = torch.Generator().manual_seed(0)
    return random_split(data, [len(data) - 360, 360], generator=generator)


class Reader(pl.LightningModule):
    """Two layers that read digits."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, _):
        images, labels = batch
        return nn.functional.cross_entropy(self.layers(images), labels)

    def validation_step(self, batch, _):
        images, labels = batch
        right = (self.layers(images).argmax(1) == labels).float().mean()
        # Averaged over all ranks.
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


if __name__ == "__main__":
    main()
