"""Maximum mean calibration error: a kernel statistic of the batch."""

import math

import torch

from calibrant.losses.log_probs import top_class
from calibrant.losses.settings import SOURCES, Source, one_of, positive
from calibrant.shapes import Labels, Logits, PerExample, Scalar

# Narrower than this only equal confidences are alike, and float32 still divides by it.
NARROWEST = 1e-30


def mmce(logits: Logits, labels: Labels, *, width: float = 0.4, form: Source = "paper") -> Scalar:
    r"""Largest average gap between correctness and confidence that a smooth witness can find.

    $$\mathrm{MMCE}^2 = \frac{1}{n^2} \sum_{i,j} (c_i - r_i)(c_j - r_j)\, e^{-|r_i - r_j| / w}$$

    with confidence r and correctness c, which carries no gradient. A term to add to a loss, with
    a weight of 1 to 4. It is biased upwards, because pairs i = j are included: of order
    $1/\sqrt n$ for a calibrated model. Time and memory grow with $n^2$.

    Args:
        logits: (n, k).
        labels: (n,).
        width: w, in units of confidence.
        form: "paper" is the root; "public_code" the square, which pulls less as it shrinks.

    References:
        Kumar et al., Trainable Calibration Measures for Neural Networks from Kernel Mean
            Embeddings, ICML 2018
    """
    positive("width", width, infinite=True)
    one_of("form", form, SOURCES)
    confidence, correct = top_class(logits, labels)
    gap = (correct - confidence) / len(labels)
    square = _inner(gap, gap, confidence, width)
    return square if form == "public_code" else _root(square)


def weighted_mmce(
    logits: Logits, labels: Labels, *, width: float = 0.4, form: Source = "paper"
) -> Scalar:
    r"""MMCE in which right and wrong predictions weigh the same, however many there are of each.

    $$\mathrm{MMCE}_w^2 = \sum_{i,j} g_i g_j\, e^{-|r_i - r_j| / w}, \qquad
      g_i = \frac{1 - r_i}{m} \text{ if right}, \quad -\frac{r_i}{n - m} \text{ if wrong}$$

    with m of n predictions right. Zero, without gradient, where all are right or all are wrong. A
    term to add to a loss.

    Args:
        logits: (n, k).
        labels: (n,).
        width: w, in units of confidence.
        form: "paper" as above. "public_code" divides each of the three sums by its number of
            pairs twice (the second time plus 1e-5), so that its size falls with the batch, and
            adds 1e-10 under the root.

    References:
        Kumar et al., Trainable Calibration Measures for Neural Networks from Kernel Mean
            Embeddings, ICML 2018
    """
    positive("width", width, infinite=True)
    one_of("form", form, SOURCES)
    confidence, correct = top_class(logits, labels)
    n, rights = len(labels), correct.sum()
    # Nothing is divided by zero: each example is one of those that it is divided by.
    alike = torch.where(correct > 0, rights, n - rights)
    gap = (correct - confidence) / alike * (alike < n)
    if form == "paper":
        return _root(_inner(gap, gap, confidence, width))
    wrongs = n - rights
    right, wrong = gap * correct, gap * (correct - 1)
    square = (
        _inner(right, right, confidence, width) / (rights**2 + 1e-5)
        + _inner(wrong, wrong, confidence, width) / (wrongs**2 + 1e-5)
        - 2 * _inner(right, wrong, confidence, width) / (rights * wrongs + 1e-5)
    )
    # Not a plain zero: NaN stays NaN.
    return (square.clamp_min(0) + 1e-10).sqrt().where(rights * wrongs > 0, 0 * square)


def _inner(a: PerExample, b: PerExample, confidence: PerExample, width: float) -> Scalar:
    """Sum over all pairs of a_i b_j times the kernel."""
    kernel = ((confidence[:, None] - confidence).abs() / -max(width, NARROWEST)).exp()
    # Not a matrix product: autocast would take that in half precision.
    return (a * (kernel * b).sum(1)).sum()


def _root(square: Scalar) -> Scalar:
    """Square root with gradient 0, not infinite, at zero and where rounding went below."""
    # A power of four: its root is exact, so that zero stays zero. NaN stays NaN.
    least = torch.finfo(square.dtype).tiny
    return square.clamp_min(least).sqrt() - math.sqrt(least)
