"""A small convolutional network for fast experiments."""

from torch import Tensor, nn
from torch.nn import functional

from calibrant.models.network import Network, convolution, scaled


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
