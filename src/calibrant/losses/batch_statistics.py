"""Batch statistics: calibration errors of a batch that can be added to a loss."""

import math

import torch

from calibrant.losses.log_probs import allowed, batch_probs, confidence_and_correct, label_index
from calibrant.losses.settings import SOURCES, Source, integer, one_of, positive
from calibrant.shapes import Labels, Logits, PerExample, Scalar

# Below this width only equal confidences are similar; float32 can still divide by it.
NARROWEST = 1e-30


def dca(logits: Logits, labels: Labels) -> Scalar:
    r"""Gap between the mean confidence of the batch and its accuracy.

    $$\mathrm{DCA} = \Big| \frac1n \sum_i r_i - \frac1n \sum_i c_i \Big|$$

    A batch statistic; correctness c has no gradient. It is ECE with a single bin: errors of
    opposite sign cancel, and zero does not mean calibrated.

    References:
        Liang et al., Improved Trainable Calibration Method for Neural Networks on Medical Imaging
            Classification, BMVC 2020, arXiv:2009.04057
    """
    confidence, correct = confidence_and_correct(logits, labels)
    return (confidence.mean() - correct.mean()).abs()


def mdca(logits: Logits, labels: Labels) -> Scalar:
    r"""Gap between the mean probability of each class and how often it occurs in the batch.

    $$\mathrm{MDCA} = \frac1k \sum_j \Big| \frac1n \sum_i p_{ij} - \frac1n \sum_i 1[y_i = j] \Big|$$

    A batch statistic, often added to focal loss. In small batches of many classes the frequencies
    are mostly noise, and minimising it flattens the predictions towards them. A masked class has
    probability 0; k counts the classes that are allowed in some example of the batch.

    References:
        Hebbalaguppe et al., A Stitch in Time Saves Nine: A Train-Time Regularizing Loss for
            Improved Neural Network Calibration, CVPR 2022, arXiv:2203.13834
    """
    mean = batch_probs(logits).mean(0)
    counts = label_index(labels, logits)[:, 0].bincount(minlength=len(mean)).to(mean)
    return (mean - counts / len(labels)).abs().sum() / allowed(logits).any(0).sum()


def dece(
    logits: Logits,
    labels: Labels,
    *,
    bins: int = 15,
    bin_temperature: float = 0.01,
    rank_scale: float = 100.0,
    form: Source = "paper",
) -> Scalar:
    r"""Expected calibration error with soft bin membership and soft correctness.

    $$\mathrm{DECE} = \frac1n \sum_{b=1}^B \Big| \sum_i q_{ib} (a_i - r_i) \Big|, \qquad
      q_i = \mathrm{softmax}_b \frac{b\, r_i - b(b-1)/2B}{T}, \qquad
      a_i = \max\Big(0, 1 - \sum_{j \ne y} \sigma\big(s\,(p_{ij} - p_{iy})\big)\Big)$$

    with confidence r. As T falls and s grows it becomes ECE with B equal-width bins. A batch
    statistic (weight 0.5 in the paper), best on examples held out from training. Unlike `sece`, it
    has a gradient through correctness a. Where two classes tie at the top, each is half correct.

    Args:
        bins: B.
        bin_temperature: T, in units of confidence.
        rank_scale: s, the inverse of a temperature.
        form: "paper" as above. "public_code" first adds $10^{-6}$ to every membership and divides
            by $1 + (B + 1) 10^{-6}$.

    References:
        Bohdal et al., Meta-Calibration: Learning of Model Calibration Using Differentiable
            Expected Calibration Error, TMLR 2023, arXiv:2106.09613
    """
    integer("bins", 1, bins)
    positive("bin_temperature", bin_temperature)
    positive("rank_scale", rank_scale)
    one_of("form", form, SOURCES)
    probs = batch_probs(logits)
    confidence = probs.max(1).values
    index = label_index(labels, probs)
    # At -inf neither a masked class nor the label itself ranks above the label.
    others = probs.where(allowed(logits), -torch.inf).scatter(1, index, -torch.inf)
    ranked_above = torch.sigmoid(rank_scale * (others - probs.gather(1, index))).sum(1)
    accuracy = (1 - ranked_above).relu()
    number = torch.arange(1, bins + 1, device=probs.device, dtype=probs.dtype)
    edge_sums = (number - 1) / (2 * bins)
    member = torch.softmax(number / bin_temperature * (confidence[:, None] - edge_sums), 1)
    if form == "public_code":
        member = (member + 1e-6) / (1 + (bins + 1) * 1e-6)
    gaps = member * (accuracy - confidence)[:, None]
    return gaps.mean(0).abs().sum()


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
