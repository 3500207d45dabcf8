"""VGG-16 with batch norm for small images."""

from torch import Tensor, nn
from torch.nn import functional

from calibrant.models.network import Network, convolution, scaled


class Convolved(nn.Module):
    """Convolution, norm, ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = convolution(inputs, outputs)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Same height and width."""
        return functional.relu(self.norm(self.conv(x)))


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
                layers.append(Convolved(inputs, scaled(size, width)))
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
