"""Networks for token ids (n, length), where 0 is padding."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.losses.settings import at_least, positive
from calibrant.models.network import Network

PADDING = 0


class TextCNN(Network):
    """Embedding, 1-d convolutions with pooling, global max pooling, a hidden layer.

    The defaults are the network of the published experiments on 20 Newsgroups: three convolutions
    of 128 channels and width 5, pooling of width 5 and stride 1 after the first two, a hidden
    layer of 128. Padding is masked after each layer: more padding does not change the output.

    Args:
        vocabulary: number of token ids.
        dimension: dimension of the embedding.
        channels: number of channels of each convolution.
        kernels: width of each convolution, odd.
        pool: width of max pooling after each convolution but the last, odd; 1 is none.
        stride: stride of the pooling; more than 1 saves most of the time for long texts.
        hidden: width of the linear layer before the head; 0 is none.

    References:
        Kim, Convolutional Neural Networks for Sentence Classification, EMNLP 2014, arXiv:1408.5882.
        Liu et al., The Devil is in the Margin, CVPR 2022, arXiv:2111.15430.
    """

    def __init__(
        self,
        classes: int,
        vocabulary: int,
        *,
        dimension: int = 100,
        channels: int = 128,
        kernels: Sequence[int] = (5, 5, 5),
        pool: int = 5,
        stride: int = 1,
        hidden: int = 128,
    ) -> None:
        super().__init__()
        for name, size in {"dimension": dimension, "channels": channels, "stride": stride}.items():
            positive(name, size)
        at_least("hidden", 0, hidden)
        if not kernels or any(size < 1 or size % 2 == 0 for size in (*kernels, pool)):
            raise ValueError(
                f"kernels and pool must be odd and positive, got {list(kernels)} and {pool}"
            )
        self.pool, self.stride = pool, stride
        self.embedding = nn.Embedding(vocabulary, dimension, padding_idx=PADDING)
        sizes = [dimension, *[channels] * len(kernels)]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(inputs, channels, size, padding=size // 2)
            for inputs, size in zip(sizes, kernels, strict=False)
        )
        self.hidden = nn.Linear(channels, hidden) if hidden else None
        self.head = nn.Linear(hidden or channels, classes)
        self.initialise()

    def features(self, x: Tensor) -> Tensor:
        """The hidden layer, or without one the maximum of each channel, (n, d)."""
        out = self.embedding(x).transpose(1, 2)
        real = (x != PADDING)[:, None].to(out.dtype)
        # Forward mode ignores padding_idx: without this the Hessian would not be symmetric.
        out = out * real
        for place, layer in enumerate(self.convolutions):
            # Values after ReLU are not negative, so zeros of padding never win the maximum.
            out = functional.relu(layer(out)) * real
            if self.pool > 1 and place < len(self.convolutions) - 1:
                out = functional.max_pool1d(out, self.pool, self.stride, padding=self.pool // 2)
                real = real[:, :, :: self.stride]
                out = out * real
        out = out.amax(2)
        return out if self.hidden is None else functional.relu(self.hidden(out))


class BagOfEmbeddings(Network):
    """Mean of the embeddings of the tokens without padding; zero for a text without tokens.

    Args:
        vocabulary: number of token ids.
        dimension: dimension of the embedding.
        hidden: width of a layer with ReLU before the head; 0 is none.

    References:
        Joulin et al., Bag of Tricks for Efficient Text Classification, EACL 2017, arXiv:1607.01759.
    """

    def __init__(
        self, classes: int, vocabulary: int, *, dimension: int = 64, hidden: int = 0
    ) -> None:
        super().__init__()
        positive("dimension", dimension)
        at_least("hidden", 0, hidden)
        self.embedding = nn.Embedding(vocabulary, dimension, padding_idx=PADDING)
        self.hidden = nn.Linear(dimension, hidden) if hidden else None
        self.head = nn.Linear(hidden or dimension, classes)
        self.initialise()

    def features(self, x: Tensor) -> Tensor:
        """The mean, or the hidden layer after it, (n, d)."""
        # Not nn.EmbeddingBag, which has no second derivative.
        vectors = self.embedding(x)
        real = (x != PADDING)[:, :, None].to(vectors.dtype)
        mean: Tensor = (vectors * real).sum(1) / real.sum(1).clamp(min=1)
        return mean if self.hidden is None else torch.relu(self.hidden(mean))
