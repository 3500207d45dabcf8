"""Residual networks for small images: the CIFAR family, ResNet-18, ResNet-50, Wide ResNet."""

from torch import Tensor, nn
from torch.nn import functional

from calibrant.models.network import Network, convolution, scaled


class Subsample(nn.Module):
    """Shortcut A of the paper, without parameters: every second pixel, new channels zero."""

    def __init__(self, *, stride: int, extra: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, extra

    def forward(self, x: Tensor) -> Tensor:
        """New channels are appended."""
        return functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))


class Projection(nn.Sequential):
    """Shortcut B of the paper: a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__(convolution(inputs, outputs, 1, stride=stride), nn.BatchNorm2d(outputs))


class Basic(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, outputs: int, *, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, outputs, stride=stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = convolution(outputs, outputs)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """ReLU after the sum."""
        out = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut; the middle one is a quarter as wide.

    The 3x3 convolution has the stride, as in most code; in the paper the first 1x1 has it.
    """

    expansion = 4

    def __init__(self, inputs: int, outputs: int, *, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        inner = outputs // self.expansion
        self.conv1 = convolution(inputs, inner, 1)
        self.norm1 = nn.BatchNorm2d(inner)
        self.conv2 = convolution(inner, inner, stride=stride)
        self.norm2 = nn.BatchNorm2d(inner)
        self.conv3 = convolution(inner, outputs, 1)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """ReLU after the sum."""
        out = functional.relu(self.norm1(self.conv1(x)))
        out = functional.relu(self.norm2(self.conv2(out)))
        return functional.relu(self.norm3(self.conv3(out)) + self.shortcut(x))


class ResNet(Network):
    """A 3x3 stem, stages that halve the image, global average pooling.

    Args:
        block: `Basic` or `Bottleneck`.
        stages: blocks in each stage.
        first: channels of the first stage, before `width`; each next stage doubles them.
        learnt_shortcuts: whether shortcuts that change the shape are B (learnt) or A.
        width: multiplies all channels.

    References:
        He et al., Deep Residual Learning for Image Recognition, CVPR 2016, arXiv:1512.03385.
    """

    def __init__(
        self,
        classes: int,
        channels: int,
        *,
        block: type[Basic] | type[Bottleneck] = Basic,
        stages: tuple[int, ...],
        first: int,
        learnt_shortcuts: bool,
        width: float = 1.0,
    ) -> None:
        super().__init__()
        inputs = base = scaled(first, width)
        self.conv = convolution(channels, base)
        self.norm = nn.BatchNorm2d(base)
        blocks: list[nn.Module] = []
        for stage, count in enumerate(stages):
            outputs = base * 2**stage * block.expansion
            for place in range(count):
                stride = 2 if stage and not place else 1
                shortcut: nn.Module = nn.Identity()
                if learnt_shortcuts and (stride > 1 or inputs != outputs):
                    shortcut = Projection(inputs, outputs, stride=stride)
                elif stride > 1 or inputs != outputs:
                    shortcut = Subsample(stride=stride, extra=outputs - inputs)
                blocks.append(block(inputs, outputs, stride=stride, shortcut=shortcut))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)
        self.initialise()

    def features(self, x: Tensor) -> Tensor:
        """Mean over the last feature map, (n, d)."""
        out: Tensor = self.blocks(functional.relu(self.norm(self.conv(x))))
        return out.mean((2, 3))


def cifar_resnet(classes: int, channels: int, *, depth: int, width: float = 1.0) -> ResNet:
    """Three stages of 16, 32 and 64 channels, (depth - 2) / 6 blocks each, shortcut A."""
    blocks, rest = divmod(depth - 2, 6)
    if rest or blocks < 1:
        raise ValueError(f"depth must be 6 n + 2 (8, 14, 20, ...), got {depth}")
    stages = (blocks,) * 3
    return ResNet(classes, channels, stages=stages, first=16, learnt_shortcuts=False, width=width)


def resnet18(classes: int, channels: int, *, width: float = 1.0) -> ResNet:
    """Four stages of 64 to 512 channels, two basic blocks each, shortcut B."""
    stages = (2, 2, 2, 2)
    return ResNet(classes, channels, stages=stages, first=64, learnt_shortcuts=True, width=width)


def resnet50(classes: int, channels: int, *, width: float = 1.0) -> ResNet:
    """Four stages of 256 to 2048 channels, 3, 4, 6 and 3 bottleneck blocks, shortcut B."""
    return ResNet(
        classes,
        channels,
        block=Bottleneck,
        stages=(3, 4, 6, 3),
        first=64,
        learnt_shortcuts=True,
        width=width,
    )


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
