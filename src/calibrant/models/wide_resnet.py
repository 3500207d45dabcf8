"""Wide residual networks."""

from torch import Tensor, nn
from torch.nn import functional

from calibrant.models.network import Network, convolution, scaled


class PreActivated(nn.Module):
    """Norm and ReLU before each of two 3x3 convolutions, dropout between them."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = convolution(inputs, outputs, stride=stride)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = convolution(outputs, outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else convolution(inputs, outputs, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """Where the shape changes, the shortcut also starts after the first ReLU."""
        out = functional.relu(self.norm1(x))
        skip = x if self.shortcut is None else self.shortcut(out)
        out = self.dropout(functional.relu(self.norm2(self.conv1(out))))
        total: Tensor = self.conv2(out) + skip
        return total


class WideResNet(Network):
    """Three stages of 16, 32 and 64 channels times `width`, (depth - 4) / 6 blocks each.

    Args:
        depth: 6 n + 4.
        width: multiplies the channels of the stages; the stem always has 16.
        dropout: probability of dropout inside each block.

    References:
        Zagoruyko and Komodakis, Wide Residual Networks, BMVC 2016, arXiv:1605.07146.
    """

    def __init__(
        self,
        classes: int,
        channels: int,
        *,
        depth: int = 28,
        width: float = 10.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        if rest or blocks < 1:
            raise ValueError(f"depth must be 6 n + 4 (10, 16, 22, 28, ...), got {depth}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        self.conv = convolution(channels, 16)
        layers: list[nn.Module] = []
        inputs = 16
        for stage in range(3):
            outputs = scaled(16 * 2**stage, width)
            for place in range(blocks):
                stride = 2 if stage and not place else 1
                layers.append(PreActivated(inputs, outputs, stride=stride, dropout=dropout))
                inputs = outputs
        self.blocks = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(inputs)
        self.head = nn.Linear(inputs, classes)
        self.initialise()

    def features(self, x: Tensor) -> Tensor:
        """Mean over the last feature map, (n, d)."""
        return functional.relu(self.norm(self.blocks(self.conv(x)))).mean((2, 3))
