"""Maximum mean calibration error (MMCE): a kernel statistic of the batch."""

import math

import torch

from calibrant.losses.log_probs import confidence_and_correct
from calibrant.losses.settings import SOURCES, Source, one_of, positive
from calibrant.shapes import Labels, Logits, PerExample, Scalar

# Below this width only equal confidences are similar; float32 can still divide by it.
NARROWEST = 1e-30


def mmce(logits: Logits, labels: Labels, *, width: float = 0.4, form: Source = "paper") -> Scalar:
    r"""Maximum mean calibration error: kernel norm of the gaps of correctness and confidence.

    $$\mathrm{MMCE}^2 = \frac{1}{n^2} \sum_{i,j} (c_i - r_i)(c_j - r_j)\, e^{-|r_i - r_j| / w}$$

    with confidence r and correctness c, which has no gradient. A batch statistic, with a usual
    weight of 1 to 4. It is biased upwards because pairs i = j are included: of order $1/\sqrt n$
    for a calibrated model. Time and memory grow with $n^2$.

    Args:
        width: w, in units of confidence.
        form: "paper" is the root; "public_code" the square, whose gradient vanishes at zero.

    References:
        Kumar et al., Trainable Calibration Measures for Neural Networks from Kernel Mean
            Embeddings, ICML 2018
    """
    positive("width", width, infinite=True)
    one_of("form", form, SOURCES)
    confidence, correct = confidence_and_correct(logits, labels)
    gap = (correct - confidence) / len(labels)
    square = _inner(gap, gap, confidence, width)
    return square if form == "public_code" else _root(square)


def weighted_mmce(
    logits: Logits, labels: Labels, *, width: float = 0.4, form: Source = "paper"
) -> Scalar:
    r"""MMCE with equal total weight for correct and for wrong predictions.

    $$\mathrm{MMCE}_w^2 = \sum_{i,j} g_i g_j\, e^{-|r_i - r_j| / w}, \qquad
      g_i = \frac{1 - r_i}{m} \text{ if correct}, \quad -\frac{r_i}{n - m} \text{ if wrong}$$

    with m of n predictions correct. A batch statistic; zero, without gradient, where all are
    correct or all are wrong.

    Args:
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
    confidence, correct = confidence_and_correct(logits, labels)
    n, rights = len(labels), correct.sum()
    # The size of the group that each example belongs to, hence never zero.
    group = torch.where(correct > 0, rights, n - rights)
    gap = (correct - confidence) / group * (group < n)
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
    # Not a matrix product: autocast would compute it in half precision.
    return (a * (kernel * b).sum(1)).sum()


def _root(square: Scalar) -> Scalar:
    """Square root whose gradient is 0, not infinite, at zero and below (from rounding)."""
    # A power of four, whose root is exact: zero stays zero. NaN stays NaN.
    least = torch.finfo(square.dtype).tiny
    return square.clamp_min(least).sqrt() - math.sqrt(least)
