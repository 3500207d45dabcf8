"""Synthetic predictions with known posterior, hence with known calibration error."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float64
from scipy import integrate, special, stats

from calibrant.predictions import Predictions
from calibrant.shapes import Index, Logits, Values

Curve = Callable[[Values], Values]


@dataclass(frozen=True)
class Sample:
    """Predictions, and the true class probabilities of every example, (n, k)."""

    predictions: Predictions
    posterior: Logits


@dataclass(frozen=True)
class Synthetic:
    r"""A model that predicts with confidence r and is correct with probability accuracy(r).

    Confidence is $r = 1/k + (1 - 1/k)\,u$ with $u \sim \mathrm{Beta}(a, b)$; the predicted class
    is uniform; the label is the predicted class with probability `accuracy(r)`, otherwise a
    uniformly random other class. The remaining probability 1 - r is spread evenly, so the
    posterior is known for every class and the true error is an integral over r alone.

    Attributes:
        classes: k.
        shape: (a, b) of the Beta distribution.
        accuracy: the true accuracy at confidence r, vectorised.
        meaning: one line for tables.
    """

    classes: int
    shape: tuple[float, float]
    accuracy: Curve
    meaning: str

    def sample(self, n: int, *, seed: int) -> Sample:
        """Draw n labelled predictions."""
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        generator = np.random.default_rng(seed)
        confidence = self._confidence(generator.beta(*self.shape, n))
        right = self.accuracy(confidence)
        predicted = generator.integers(0, self.classes, n)
        other = (predicted + generator.integers(1, self.classes, n)) % self.classes
        labels = np.where(generator.random(n) < right, predicted, other)
        probs, posterior = (self._vectors(top, predicted) for top in (confidence, right))
        return Sample(Predictions.from_probs(probs, labels), torch.from_numpy(posterior))

    def true_error(self, norm: float = 1.0) -> float:
        r"""True calibration error $(\mathrm{E}\,|accuracy(r) - r|^{norm})^{1/norm}$, unbinned."""
        mean = self._expect(lambda r: np.abs(self.accuracy(r) - r) ** norm, 0.0, 1.0)
        return float(mean ** (1 / norm))

    def true_binned_error(self, bins: int = 15) -> float:
        """Limit of ECE with these bins as n grows; never above the true error."""
        inner = np.arange(1, bins) / bins
        low = 1 / self.classes
        cuts = [0.0, *((inner[inner > low] - low) / (1 - low)).tolist(), 1.0]
        gaps = [self._expect(lambda r: self.accuracy(r) - r, a, b) for a, b in pairwise(cuts)]
        return sum(abs(gap) for gap in gaps)

    def _expect(self, value: Curve, low: float, high: float) -> float:
        """Integral of value(r) times the density of u, from low to high."""
        density = stats.beta(*self.shape).pdf

        def integrand(u: float) -> float:
            return float(value(self._confidence(np.array([u])))[0] * density(u))

        return float(integrate.quad(integrand, low, high, limit=400)[0])

    def _confidence(self, u: Values) -> Values:
        return 1 / self.classes + (1 - 1 / self.classes) * u

    def _vectors(self, top: Values, predicted: Index) -> Float64[np.ndarray, "n k"]:
        rest = (1 - top) / (self.classes - 1)
        vectors = np.repeat(rest[:, None], self.classes, 1)
        vectors[np.arange(len(top)), predicted] = top
        return vectors


def tempered(temperature: float) -> Curve:
    """Accuracy of a two-class model whose true log-odds were divided by the temperature."""
    return lambda r: special.expit(temperature * special.logit(r))


SYNTHETIC = {
    "calibrated": Synthetic(10, (3.0, 1.0), lambda r: r, "confidence equals accuracy"),
    "overconfident": Synthetic(
        10,
        (3.0, 1.0),
        lambda r: r - 0.15 * (r - 0.1) ** 2 / 0.9,
        "over-confident, most at high confidence",
    ),
    "underconfident": Synthetic(
        10, (3.0, 1.0), lambda r: r + 0.4 * (r - 0.1) * (1 - r), "under-confident in the middle"
    ),
    "wavy": Synthetic(
        10,
        (2.0, 1.5),
        lambda r: r + 0.6 * (1 - r) * (r - 0.1) * np.sin(12 * math.pi * r),
        "errors of both signs, some narrower than a bin",
    ),
    "saturated": Synthetic(
        10, (8.0, 0.25), lambda r: 0.93 * r, "nearly every confidence above 0.99, 7 % wrong"
    ),
    "tempered": Synthetic(2, (2.0, 0.7), tempered(0.5), "two classes, true log-odds doubled"),
}
