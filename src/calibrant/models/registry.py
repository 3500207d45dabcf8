"""All networks by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from calibrant.models.convolutional import SmallCNN, vgg16
from calibrant.models.densenet import densenet40, densenet121
from calibrant.models.mlp import MLP
from calibrant.models.network import Network
from calibrant.models.resnet import WideResNet, cifar_resnet, resnet18, resnet50
from calibrant.models.text import BagOfEmbeddings, TextCNN
from calibrant.models.unet import UNet

Kind = Literal["images", "masks", "text", "numbers"]
# Kinds of datasets that a model can take, by its own kind.
TAKES: dict[Kind, tuple[str, ...]] = {
    "images": ("images", "images or text"),
    "masks": ("masks",),
    "text": ("text", "images or text"),
    "numbers": ("vectors", "images", "images or text"),
}


@dataclass(frozen=True)
class Model:
    """A network that can be built by name.

    Attributes:
        kind: kind of the inputs: `images` (c, h, w); `masks`, images with a label per pixel;
            `text`, token ids; `numbers`, vectors or images.
        make: `make(classes, size, **settings)`, where size is, by kind, the number of channels, of
            token ids, or of elements of an input.
        meaning: one line for tables.
    """

    kind: Kind
    make: Callable[..., Network]
    meaning: str


def _cifar(depth: int) -> Model:
    meaning = f"ResNet-{depth} for small images, 16 to 64 channels"
    return Model("images", partial(cifar_resnet, depth=depth), meaning)


MODELS = {
    "small_cnn": Model("images", SmallCNN, "three convolutions, for 8x8 to 16x16 images"),
    "mlp": Model("numbers", MLP, "two hidden layers of 200, tanh; flattens images"),
    "resnet8": _cifar(8),
    "resnet14": _cifar(14),
    "resnet20": _cifar(20),
    "resnet32": _cifar(32),
    "resnet56": _cifar(56),
    "resnet110": _cifar(110),
    "resnet18": Model("images", resnet18, "ResNet-18, 3x3 stem, 64 to 512 channels"),
    "resnet50": Model("images", resnet50, "ResNet-50, 3x3 stem, bottlenecks to 2048 channels"),
    "wide_resnet": Model("images", WideResNet, "Wide ResNet 28-10, pre-activation, dropout"),
    "vgg16": Model("images", vgg16, "VGG-16 with batch norm and one linear layer"),
    "densenet40": Model("images", densenet40, "DenseNet, 40 layers, growth 12"),
    "densenet121": Model("images", densenet121, "DenseNet-121, 3x3 stem, growth 32"),
    "unet": Model("masks", UNet, "small U-Net, logits for each pixel"),
    "text_cnn": Model("text", TextCNN, "1-d convolutions and a global maximum"),
    "bag_of_embeddings": Model("text", BagOfEmbeddings, "mean of the embeddings of the tokens"),
}


def models_for(kind: str) -> list[str]:
    """Return the names of the models that take datasets of this kind.

    >>> models_for("masks")
    ['unet']
    """
    return [name for name, model in MODELS.items() if kind in TAKES[model.kind]]
