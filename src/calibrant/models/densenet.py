"""Densely connected networks for small images."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.losses.settings import positive
from calibrant.models.network import Network, convolution, named


class Dense(nn.Module):
    """Norm, ReLU, convolution; the output is concatenated to the input.

    With a bottleneck, a 1x1 convolution to 4 growth channels precedes the 3x3 one.
    """

    def __init__(self, inputs: int, growth: int, *, bottleneck: bool) -> None:
        super().__init__()
        self.bottleneck = bottleneck
        self.norm1 = nn.BatchNorm2d(inputs)
        if bottleneck:
            self.conv1 = convolution(inputs, 4 * growth, 1)
            self.norm2 = nn.BatchNorm2d(4 * growth)
            self.conv2 = convolution(4 * growth, growth)
        else:
            self.conv1 = convolution(inputs, growth)

    def forward(self, x: Tensor) -> Tensor:
        """Adds `growth` channels."""
        out = self.conv1(functional.relu(self.norm1(x)))
        if self.bottleneck:
            out = self.conv2(functional.relu(self.norm2(out)))
        return torch.cat([x, out], 1)


def transition(inputs: int, outputs: int) -> nn.Sequential:
    """Norm, ReLU, 1x1 convolution, average pooling; odd sizes are rounded up."""
    return named(
        norm=nn.BatchNorm2d(inputs),
        relu=nn.ReLU(),
        conv=convolution(inputs, outputs, 1),
        pool=nn.AvgPool2d(2, ceil_mode=True),
    )


class DenseNet(Network):
    """Blocks in which each layer has all earlier layers as input; transitions halve the image.

    Args:
        blocks: layers of each block.
        growth: channels that each layer adds.
        stem: channels of the first convolution.
        bottleneck: whether layers have a 1x1 convolution first, and transitions halve the channels
            (the paper's DenseNet-BC).

    References:
        Huang et al., Densely Connected Convolutional Networks, CVPR 2017, arXiv:1608.06993.
    """

    def __init__(
        self,
        classes: int,
        channels: int,
        *,
        blocks: tuple[int, ...],
        growth: int,
        stem: int,
        bottleneck: bool,
    ) -> None:
        super().__init__()
        positive("growth", growth)
        layers: list[nn.Module] = [convolution(channels, stem)]
        inputs = stem
        for place, count in enumerate(blocks):
            if place:
                outputs = inputs // 2 if bottleneck else inputs
                layers.append(transition(inputs, outputs))
                inputs = outputs
            for _ in range(count):
                layers.append(Dense(inputs, growth, bottleneck=bottleneck))
                inputs += growth
        self.layers = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(inputs)
        self.head = nn.Linear(inputs, classes)
        self.initialise()

    def features(self, x: Tensor) -> Tensor:
        """Mean over the last feature map, (n, d)."""
        return functional.relu(self.norm(self.layers(x))).mean((2, 3))


def densenet40(classes: int, channels: int, *, growth: int = 12) -> DenseNet:
    """Three blocks of 12 layers, without bottleneck: the paper's L = 40, k = 12."""
    blocks = (12, 12, 12)
    return DenseNet(classes, channels, blocks=blocks, growth=growth, stem=16, bottleneck=False)


def densenet121(classes: int, channels: int, *, growth: int = 32) -> DenseNet:
    """Blocks of 6, 12, 24 and 16 layers with bottlenecks."""
    blocks, stem = (6, 12, 24, 16), 2 * growth
    return DenseNet(classes, channels, blocks=blocks, growth=growth, stem=stem, bottleneck=True)
