"""Convolutional networks without shortcuts: a small one for fast experiments, and VGG-16."""

from torch import Tensor, nn
from torch.nn import functional

from calibrant.models.network import Network, convolution, named, scaled


class SmallCNN(Network):
    """Three convolutions with batch norm, two poolings, global average pooling.

    For 8x8 digits and 16x16 images; any size works.

    Args:
        width: multiplies the 32, 64 and 64 channels.
    """

    def __init__(self, classes: int, channels: int, *, width: float = 1.0) -> None:
        super().__init__()
        first, second = scaled(32, width), scaled(64, width)
        self.conv1, self.norm1 = convolution(channels, first), nn.BatchNorm2d(first)
        self.conv2, self.norm2 = convolution(first, second), nn.BatchNorm2d(second)
        self.conv3, self.norm3 = convolution(second, second), nn.BatchNorm2d(second)
        self.head = nn.Linear(second, classes)
        self.initialise()

    def features(self, x: Tensor) -> Tensor:
        """Mean over the last feature map, (n, d)."""
        out = functional.relu(self.norm1(self.conv1(x)))
        # Odd sizes are rounded up, so that a pooled 1x1 image is not empty.
        out = functional.max_pool2d(out, 2, ceil_mode=True)
        out = functional.relu(self.norm2(self.conv2(out)))
        out = functional.max_pool2d(out, 2, ceil_mode=True)
        return functional.relu(self.norm3(self.conv3(out))).mean((2, 3))


def convolved(inputs: int, outputs: int) -> nn.Sequential:
    """Convolution, norm, ReLU."""
    return named(conv=convolution(inputs, outputs), norm=nn.BatchNorm2d(outputs), relu=nn.ReLU())


class VGG(Network):
    """Stages of 3x3 convolutions, each followed by max pooling; global average pooling.

    One linear layer instead of the paper's three large ones for 224x224 images. Convolutions have
    no bias: the norm that follows would remove it.

    Args:
        stages: channels, before `width`, and number of convolutions of each stage.
        width: multiplies all channels.

    References:
        Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition,
        ICLR 2015, arXiv:1409.1556.
    """

    def __init__(
        self,
        classes: int,
        channels: int,
        *,
        stages: tuple[tuple[int, int], ...],
        width: float = 1.0,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = channels
        for size, count in stages:
            for _ in range(count):
                layers.append(convolved(inputs, scaled(size, width)))
                inputs = scaled(size, width)
            # Images below 32x32 reach 1x1 early and stay there.
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)
        self.initialise()

    def features(self, x: Tensor) -> Tensor:
        """Mean over the last feature map, (n, d)."""
        out: Tensor = self.layers(x)
        return out.mean((2, 3))


def vgg16(classes: int, channels: int, *, width: float = 1.0) -> VGG:
    """Thirteen convolutions of 64 to 512 channels."""
    stages = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
    return VGG(classes, channels, stages=stages, width=width)
