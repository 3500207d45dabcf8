"""Base class of networks: features, a head, and initialisation."""

from abc import ABC, abstractmethod
from collections import OrderedDict

from torch import Tensor, nn

from calibrant.losses.settings import positive


class Network(nn.Module, ABC):
    """A classifier in two parts: `forward(x) = head(features(x))`.

    The head is one linear layer (a 1x1 convolution in networks for masks), which methods that
    update or differentiate the last layer rely on.
    """

    head: nn.Module

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """Input of the head: (n, d), or (n, d, h, w) in networks for masks."""

    def forward(self, x: Tensor) -> Tensor:
        """Logits: (n, k), or (n, k, h, w)."""
        logits: Tensor = self.head(self.features(x))
        return logits

    def initialise(self) -> None:
        """Draw the initial weights; the last line of every `__init__`.

        Convolutions: normal with variance 2 / fan_out, which preserves the scale of gradients
        through ReLU. Linear layers: uniform on ±1 / sqrt(fan_in). Embeddings: normal with variance
        1 / dimension, zero for padding. Biases are zero; norms are the identity.

        References:
            He et al., Delving Deep into Rectifiers, ICCV 2015, arXiv:1502.01852.
        """
        for module in self.modules():
            if isinstance(module, nn.Conv1d | nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                bound = module.in_features**-0.5
                nn.init.uniform_(module.weight, -bound, bound)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
                if module.padding_idx is not None:
                    nn.init.zeros_(module.weight.data[module.padding_idx])
            bias = getattr(module, "bias", None)
            if isinstance(bias, Tensor):
                nn.init.zeros_(bias)


def convolution(inputs: int, outputs: int, size: int = 3, *, stride: int = 1) -> nn.Conv2d:
    """Square kernel of odd size, same padding, no bias: a norm follows or precedes it."""
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


def named(**layers: nn.Module) -> nn.Sequential:
    """Layers one after the other, with names for their weights."""
    return nn.Sequential(OrderedDict(layers))


def scaled(channels: int, width: float) -> int:
    """Channels of a layer times `width`; at least one."""
    positive("width", width)
    return max(1, round(channels * width))
