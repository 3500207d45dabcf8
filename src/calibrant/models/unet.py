"""A small U-Net for masks: a label per pixel."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.losses.settings import positive
from calibrant.models.network import Network, convolution, named, scaled


def two_convolutions(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with norm and ReLU."""
    return named(
        conv1=convolution(inputs, outputs),
        norm1=nn.BatchNorm2d(outputs),
        relu1=nn.ReLU(),
        conv2=convolution(outputs, outputs),
        norm2=nn.BatchNorm2d(outputs),
        relu2=nn.ReLU(),
    )


class UNet(Network):
    """An encoder that halves the image `levels` times, and a decoder with skip connections.

    The decoder upsamples each map to the size of its skip connection, by nearest pixels, so that
    any height and width is allowed and the output has the size of the input. The paper crops and
    learns the upsampling.

    Args:
        levels: number of halvings.
        width: multiplies the 16 channels of the first level; each next level doubles them.

    References:
        Ronneberger et al., U-Net: Convolutional Networks for Biomedical Image Segmentation,
        MICCAI 2015, arXiv:1505.04597.
    """

    def __init__(self, classes: int, channels: int, *, levels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        positive("levels", levels)
        sizes = [scaled(16 * 2**level, width) for level in range(levels + 1)]
        self.down = nn.ModuleList(map(two_convolutions, [channels, *sizes], sizes))
        upwards = [two_convolutions(small + large, small) for small, large in pairwise(sizes)]
        self.up = nn.ModuleList(reversed(upwards))
        self.head = nn.Conv2d(sizes[0], classes, 1)
        self.initialise()

    def features(self, x: Tensor) -> Tensor:
        """A vector for each pixel, (n, d, h, w)."""
        maps: list[Tensor] = []
        out = x
        for level, block in enumerate(self.down):
            out = block(functional.max_pool2d(out, 2, ceil_mode=True) if level else out)
            maps.append(out)
        for block, skip in zip(self.up, reversed(maps[:-1]), strict=True):
            upsampled = functional.interpolate(out, size=skip.shape[2:], mode="nearest")
            out = block(torch.cat([skip, upsampled], 1))
        return out
