"""Calibration errors of the top label over bins."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Float64, Int64
from scipy import special

from calibrant.metrics.bins import (
    Bins,
    BinSums,
    bin_edges,
    bin_index,
    check_count,
    warn_if_thin,
)
from calibrant.metrics.metric import Statistic
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import warn
from calibrant.shapes import PerBin, Values

NORMS = {"l1": 1.0, "l2": 2.0, "max": math.inf}


def binned_statistic(
    predictions: Predictions, *, bins: Bins = 15, measure: Callable[[BinSums], float]
) -> Statistic:
    """Prepare a function of the top label's sums per bin for resampling."""
    edges = tuple(bin_edges(bins))
    index = bin_index(predictions.confidence.numpy(), np.asarray(edges))
    # Sorted by bin, each bin is one slice, and sums of slices are fast.
    order = index.argsort(kind="stable")
    filled, starts = np.unique(index[order], return_index=True)
    confidence = predictions.confidence.numpy()[order]
    correct = predictions.correct.numpy()[order]

    def statistic(weights: Values) -> float:
        own = weights[order]
        sums = np.zeros((3, len(edges) - 1))
        for row, values in enumerate((own, own * confidence, own * correct)):
            sums[row, filled] = np.add.reduceat(values, starts)
        return measure(BinSums(sums[0], sums[1], sums[2], edges))

    return statistic


def _measured(predictions: Predictions, bins: Bins, measure: Callable[[BinSums], float]) -> float:
    sums = BinSums.of(predictions, bins)
    warn_if_thin(len(predictions), sums.bins, stacklevel=4)
    return measure(sums)


def calibration_error(
    predictions: Predictions, *, bins: Bins = 15, norm: float | str = "l1"
) -> float:
    r"""L_p distance between confidence and accuracy, over bins of equal width.

    $$\Bigl(\sum_b \frac{n_b}{n}\,|\mathrm{conf}_b - \mathrm{acc}_b|^p\Bigr)^{1/p}$$

    Args:
        predictions: what to measure.
        bins: number of bins ((b-1)/B, b/B], or their edges from 0 to 1.
        norm: "l1" (ECE), "l2" (RMSCE), "max" (MCE), or any number p >= 1.
    """
    power = check_norm(norm)
    return _measured(predictions, bins, lambda sums: float(sums.error(power)))


def calibration_error_statistic(
    predictions: Predictions, *, bins: Bins = 15, norm: float | str = "l1"
) -> Statistic:
    """Prepare `calibration_error` for resampling."""
    power = check_norm(norm)
    return binned_statistic(predictions, bins=bins, measure=lambda sums: float(sums.error(power)))


def ece(predictions: Predictions, *, bins: Bins = 15) -> float:
    r"""Expected calibration error: mean absolute difference of confidence and accuracy.

    $$\mathrm{ECE} = \sum_b \frac{n_b}{n}\,\bigl|\mathrm{conf}_b - \mathrm{acc}_b\bigr|$$

    Bin b is ((b-1)/B, b/B], compared in float64; confidence 0 lies in the first bin and 1 in the
    last; empty bins add nothing. Biased upwards on small samples, by about sqrt(bins / n) for a
    calibrated model: compare at equal n, or use `debiased_ece`. Errors that cancel within a bin
    are not counted, so it can be below the true error.

    References:
        Naeini et al., Obtaining Well Calibrated Probabilities Using Bayesian Binning, AAAI 2015.
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017, arXiv:1706.04599.

    Examples:
        >>> p = Predictions.from_probs([[0.9, 0.1], [0.9, 0.1]], [0, 1])
        >>> round(ece(p, bins=2), 4)
        0.4
    """
    return _measured(predictions, bins, lambda sums: sums.ece)


def mce(predictions: Predictions, *, bins: Bins = 15) -> float:
    r"""Maximum calibration error: the largest gap of any bin.

    $$\mathrm{MCE} = \max_b \bigl|\mathrm{conf}_b - \mathrm{acc}_b\bigr|$$

    Bins as in `ece`. Nearly empty bins dominate it, so it is noisy and biased upwards unless every
    bin has many examples; report its interval.

    References:
        Naeini et al., Obtaining Well Calibrated Probabilities Using Bayesian Binning, AAAI 2015.
    """
    return _measured(predictions, bins, lambda sums: sums.mce)


def rmsce(predictions: Predictions, *, bins: Bins = 15) -> float:
    r"""Root mean square calibration error: like ECE, with more weight on large gaps.

    $$\mathrm{RMSCE} = \Bigl(\sum_b \frac{n_b}{n}
      \bigl(\mathrm{conf}_b - \mathrm{acc}_b\bigr)^2\Bigr)^{1/2}$$

    Bins and bias as in `ece`; `debiased_rmsce` removes the bias of its square exactly.

    References:
        Hendrycks et al., Deep Anomaly Detection with Outlier Exposure, ICLR 2019,
            arXiv:1812.04606.
    """
    return _measured(predictions, bins, lambda sums: sums.rmsce)


def debiased_ece(predictions: Predictions, *, bins: Bins = 15) -> float:
    r"""ECE minus an estimate of its sampling bias.

    The accuracy of bin b is close to normal with deviation $s_b^2 = a_b (1 - a_b) / n_b$, so its
    absolute gap $g_b$ is too large by about $\mathrm{E}|N(g_b, s_b^2)| - |g_b|$:

    $$\sum_b \frac{n_b}{n} \Bigl(2 |g_b| - \mathrm{E}\,|N(g_b, s_b^2)|\Bigr)$$

    The expectation is in closed form, so there is no resampling noise. It removes most of the bias
    of a real error and about 40 % of it on calibrated predictions, where the observed gap is
    itself noise: see docs/bias.md. Not clipped: a negative value means no detectable error.

    References:
        Kumar et al., Verified Uncertainty Calibration, NeurIPS 2019, arXiv:1909.10155.
        Broecker, Estimating reliability and resolution of probability forecasts through
            decomposition of the empirical score, Climate Dynamics 2012.
    """
    return _measured(predictions, bins, without_noise_l1)


def debiased_rmsce(predictions: Predictions, *, bins: Bins = 15) -> float:
    r"""RMSCE with the sampling variance subtracted from its square.

    $$\Bigl(\sum_b \frac{n_b}{n} \Bigl[ g_b^2 - \frac{a_b (1 - a_b)}{n_b - 1} \Bigr]
      \Bigr)_+^{1/2}$$

    The bracket is unbiased for the square of the true gap of the bin; the root is not, and is zero
    where the sum is negative. Bins with a single example are excluded.

    References:
        Kumar et al., Verified Uncertainty Calibration, NeurIPS 2019, arXiv:1909.10155.
    """
    return _measured(predictions, bins, without_noise_l2)


def adaptive_ece(predictions: Predictions, *, bins: int = 15) -> float:
    r"""ECE over bins with equal numbers of examples.

    The equation is that of `ece`. Examples sorted by confidence are split like `np.array_split`;
    ties stay in the bin of the first of them, so the value does not depend on the order of the
    examples. For streams see `BinSums.on_grid`.

    References:
        Nguyen and O'Connor, Posterior calibration and exploratory analysis for natural language
            processing models, EMNLP 2015, arXiv:1508.05154.
    """
    sums = adaptive_sums(predictions, bins=bins)
    warn_if_thin(len(predictions), bins)
    distinct = len(tie_starts(predictions.confidence.numpy()[predictions.by_confidence]))
    if distinct < min(bins, len(predictions)):
        warn(
            f"{bins} equal-mass bins requested, {distinct} distinct "
            f"confidence value{'s' if distinct > 1 else ''}: fewer bins are used",
            stacklevel=2,
        )
    return sums.ece


def adaptive_sums(predictions: Predictions, *, bins: int = 15) -> BinSums:
    """Sums of the top label over the equal-mass bins of `adaptive_ece`."""
    return _adaptive(predictions, bins)(predictions.example_weights)


def adaptive_ece_statistic(predictions: Predictions, *, bins: int = 15) -> Statistic:
    """Prepare `adaptive_ece` for resampling."""
    sums = _adaptive(predictions, bins)
    return lambda weights: sums(weights).ece


def _adaptive(predictions: Predictions, bins: int) -> Callable[[Values], BinSums]:
    check_count(bins)
    order = predictions.by_confidence
    confidence = predictions.confidence.numpy()[order]
    correct = predictions.correct.numpy()[order]
    starts = tie_starts(confidence)
    return lambda weights: equal_mass_sums(confidence, correct, weights[order], starts, bins)


def equal_mass_sums(
    ordered: Values, correct: Values, weights: Values, starts: Int64[np.ndarray, " r"], bins: int
) -> BinSums:
    """Sums over equal-mass bins of sorted values, whose runs of ties begin at `starts`."""
    count, total, hits = (
        np.add.reduceat(part, starts) for part in (weights, weights * ordered, weights * correct)
    )
    return BinSums(count, total, hits, None).equal_mass(bins)


def tie_starts(ordered: Values) -> Int64[np.ndarray, " r"]:
    """Start of each run of equal values in a sorted array."""
    return np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))


def without_noise_l1(sums: BinSums) -> float:
    """ECE minus the folded-normal bias of each bin; see `debiased_ece`."""
    return float(without_noise(sums, 1))


def without_noise_l2(sums: BinSums) -> float:
    """RMSCE with the variance of each bin subtracted; see `debiased_rmsce`."""
    return float(without_noise(sums, 2))


def without_noise(sums: BinSums, norm: Literal[1, 2]) -> Float64[np.ndarray, "..."]:
    """Debiased ECE (norm 1) or RMSCE (norm 2) of sums of shape (..., b)."""
    if norm == 2:
        enough = sums.count > 1
        square = sums.gap**2 - _variance(sums) / np.where(enough, sums.count - 1, 1)
        return np.asarray(np.sqrt((sums.share * square * enough).sum(-1).clip(0)))
    gap = np.abs(sums.gap)
    spread = np.sqrt(_variance(sums) / np.maximum(sums.count, 1))
    ratio = np.divide(gap, spread, out=np.full_like(gap, np.inf), where=spread > 0)
    noisy = spread * math.sqrt(2 / math.pi) * np.exp(-(ratio**2) / 2)
    noisy += gap * special.erf(ratio / math.sqrt(2))
    return np.asarray((sums.share * (2 * gap - noisy)).sum(-1))


def check_norm(norm: float | str) -> float:
    """Convert "l1", "l2", "max" or a number >= 1 to the exponent."""
    power = NORMS.get(norm) if isinstance(norm, str) else norm
    if power is None or isinstance(power, bool) or not power >= 1:
        raise ValueError(f"norm must be one of {list(NORMS)} or a number >= 1, got {norm!r}")
    return float(power)


def _variance(sums: BinSums) -> PerBin:
    accuracy = sums.correct / np.where(sums.count > 0, sums.count, 1)
    return np.asarray(accuracy * (1 - accuracy)).clip(0)
