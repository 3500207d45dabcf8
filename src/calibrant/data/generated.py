"""Embedded datasets: digits, and two with known class posterior."""

from pathlib import Path

import numpy as np
import torch
from scipy import special

from calibrant.checks import as_tensor
from calibrant.data.source import Source, in_memory, numbered_classes
from calibrant.extras import need
from calibrant.losses.settings import at_least, positive

# The data are the same for every seed, which only determines the splits.
DATA_SEED = 20_240_229


def digits(folders: list[Path]) -> Source:
    """Handwritten digits of 8 x 8 pixels that come with scikit-learn."""
    library = need("sklearn.datasets", extra="sklearn", what="the digits dataset")
    found = library.load_digits()
    # Sixteen grey levels, scaled to 0..255.
    images = (found.images * (255 / 16)).round().astype(np.uint8)[:, None]
    part = in_memory(as_tensor("images", images), as_tensor("labels", found.target))
    return Source(part, None, class_names=tuple("0123456789"))


def blobs(
    folders: list[Path],
    *,
    n: int = 3000,
    test_n: int = 5000,
    classes: int = 4,
    dimensions: int = 2,
    spread: float = 1.0,
) -> Source:
    r"""Gaussian blobs of equal variance, whose posterior is known in closed form.

    With means $\mu_c$ from a standard normal times 2 and classes equally likely,
    $$P(c \mid x) = \mathrm{softmax}_c\left(-\|x - \mu_c\|^2 / 2\,spread^2\right).$$
    """
    _check(classes, n=n, test_n=test_n, dimensions=dimensions, spread=spread)
    means = _stream(0).normal(size=(classes, dimensions)) * 2
    parts = []
    for stream, size in ((1, n), (2, test_n)):
        random = _stream(stream)
        labels = random.integers(0, classes, size)
        points = (means[labels] + spread * random.normal(size=(size, dimensions))).astype("f4")
        # Of the stored float32 values, which are the network inputs.
        distance = ((points[:, None].astype("f8") - means) ** 2).sum(2)
        posterior = special.softmax(-distance / (2 * spread**2), axis=1)
        parts.append(in_memory(*map(torch.from_numpy, (points, labels, posterior))))
    return Source(parts[0], parts[1], class_names=numbered_classes(classes))


def teacher(
    folders: list[Path],
    *,
    n: int = 3000,
    test_n: int = 5000,
    classes: int = 10,
    dimensions: int = 20,
    width: int = 64,
    temperature: float = 1.0,
) -> Source:
    r"""Labels drawn from a fixed random network, whose output is the true posterior.

    $$P(c \mid x) = \mathrm{softmax}_c\left(W_2 \tanh(W_1 x) / temperature\right), \quad x \sim N$$

    Logits have a standard deviation of about 4 at temperature 1: most labels have one likely class.
    Higher temperatures make labels harder to predict, for the same inputs.
    """
    positives = {"dimensions": dimensions, "width": width, "temperature": temperature}
    _check(classes, n=n, test_n=test_n, **positives)
    random = _stream(0)
    first = random.normal(size=(dimensions, width)) * (2 / np.sqrt(dimensions))
    second = random.normal(size=(width, classes)) * (5 / np.sqrt(width))
    parts = []
    for stream, size in ((1, n), (2, test_n)):
        random = _stream(stream)
        points = random.normal(size=(size, dimensions)).astype("f4")
        logits = np.tanh(points.astype("f8") @ first) @ second
        posterior = special.softmax(logits / temperature, axis=1)
        below = random.random((size, 1)) > posterior.cumsum(1)[:, :-1]
        labels = below.sum(1)
        parts.append(in_memory(*map(torch.from_numpy, (points, labels, posterior))))
    return Source(parts[0], parts[1], class_names=numbered_classes(classes))


def _stream(number: int) -> np.random.Generator:
    return np.random.default_rng([DATA_SEED, number])


def _check(classes: int, **positives: float) -> None:
    at_least("classes", 2, classes)
    for name, value in positives.items():
        positive(name, value)
