"""Residual networks as in "Deep Residual Learning for Image Recognition" (2015), in plain PyTorch.

This ResNet-50 has the usual 161 parameters with the usual shapes: the stride of a bottleneck is in
its 3 x 3 convolution.
"""

from torch import nn

DEPTHS = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}


class ResNet(nn.Module):
    """One of the networks in `DEPTHS`, for images of any size with three color channels."""

    def __init__(self, name="resnet50", classes=1000):
        super().__init__()
        block = Basic if name in ("resnet18", "resnet34") else Bottleneck
        self.stem = nn.Sequential(
            convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        stages, width = [], 64
        for number, blocks in enumerate(DEPTHS[name]):
            inner = 64 << number
            for index in range(blocks):
                stride = 2 if number > 0 and index == 0 else 1
                stages.append(block(width, inner, stride))
                width = inner * block.expansion
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        return self.head(self.pool(self.stages(self.stem(images))).flatten(1))


class Residual(nn.Module):
    """A block whose input is added to its output."""

    expansion = 1

    def __init__(self, width, inner, stride):
        super().__init__()
        outer = inner * self.expansion
        self.path = self.layers(width, inner, stride)
        plain = stride == 1 and width == outer
        self.shortcut = nn.Identity() if plain else convolution(width, outer, 1, stride)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, images):
        return self.activation(self.path(images) + self.shortcut(images))


class Basic(Residual):
    def layers(self, width, inner, stride):
        return nn.Sequential(
            convolution(width, inner, 3, stride),
            nn.ReLU(inplace=True),
            convolution(inner, inner, 3),
        )


class Bottleneck(Residual):
    expansion = 4

    def layers(self, width, inner, stride):
        return nn.Sequential(
            convolution(width, inner, 1),
            nn.ReLU(inplace=True),
            convolution(inner, inner, 3, stride),
            nn.ReLU(inplace=True),
            convolution(inner, inner * self.expansion, 1),
        )


def convolution(width, outer, size, stride=1):
    """A convolution that preserves the image size, followed by a normalization."""
    return nn.Sequential(
        nn.Conv2d(width, outer, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(outer),
    )
