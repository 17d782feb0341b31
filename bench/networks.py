"""The networks whose training step `training.py` measures, each with a suitable batch.

`cnn` has much computation and few parameters; `transformer` has much of both; `vgg` has many
parameters for little computation, so that its step is mostly communication. `tiny` is for tests.
"""

from collections import OrderedDict

import torch
from torch import nn


def cnn():
    """Convolutions without large layers after them, 1.1 million parameters."""
    layers, width = [], 3
    for number, outer in enumerate((64, 64, 128, 128, 256, 256)):
        layers += [nn.Conv2d(width, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer)]
        layers += [nn.ReLU(inplace=True)] + [nn.MaxPool2d(2)] * (number % 2)
        width = outer
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]
    return nn.Sequential(*layers), torch.randn(8, 3, 32, 32), torch.randint(10, (8,))


def vgg():
    """A few convolutions and three large layers, 38 million parameters."""
    layers, width = [], 3
    for outer in (32, 64, 128):
        layers += [nn.Conv2d(width, outer, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        width = outer
    layers += [nn.Flatten()]
    for wide, outer in ((2048, 4096), (4096, 4096), (4096, 3000)):
        layers += [nn.Linear(wide, outer), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers[:-1]), torch.randn(8, 3, 32, 32), torch.randint(3000, (8,))


class Transformer(nn.Module):
    """An encoder that predicts a class for every word; 27 million parameters by default."""

    def __init__(self, words=8000, width=512, layers=6, heads=8):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, passages):
        return self.head(self.encoder(self.embedding(passages))).flatten(0, 1)


def transformer():
    """See `Transformer`; passages of 32 words."""
    passages = torch.randint(8000, (4, 32))
    return Transformer(), passages, torch.randint(8000, (128,))


def tiny():
    """Two small layers."""
    layers = OrderedDict(first=nn.Linear(8, 16), second=nn.Linear(16, 4))
    return nn.Sequential(layers), torch.randn(4, 8), torch.randint(4, (4,))


NETWORKS = {"cnn": cnn, "transformer": transformer, "vgg": vgg, "tiny": tiny}
