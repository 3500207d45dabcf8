"""Tests of the hypothesis that predictions are calibrated."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64
from scipy import stats

from calibrant.metrics.binary import positive_values
from calibrant.metrics.binned import tie_starts
from calibrant.metrics.bins import Bins, BinSums, bin_edges, bin_index
from calibrant.metrics.brownian_motion import maximum_tail, range_tail
from calibrant.metrics.resampling.samples import LARGE
from calibrant.predictions import Predictions
from calibrant.shapes import Index, Values
from calibrant.table_values import p_text

Gaps = Float64[np.ndarray, "resamples bins"]


@dataclass(frozen=True)
class TestResult:
    """A test statistic and its p-value under calibration.

    A test by resampling has a smallest p-value, 1 / (resamples + 1), which is only a bound.
    """

    __test__ = False  # not a pytest class

    statistic: float
    p_value: float
    smallest: float = 0.0

    def __str__(self) -> str:
        return f"p {p_text(self.p_value, self.smallest)}"


def spiegelhalter(predictions: Predictions, *, every_class: bool = False) -> TestResult:
    r"""Spiegelhalter's test: is the Brier score that of calibrated predictions?

    For confidence r and correctness c of the predicted class:

    $$Z = \frac{\sum_i (c_i - r_i)(1 - 2 r_i)}{\sqrt{\sum_i (1 - 2 r_i)^2\, r_i (1 - r_i)}}$$

    Standard normal under calibration, two-sided. Examples at r = 1/2 have no weight, and
    miscalibration that does not change the Brier score is not detected. With `every_class` the
    full probability vector is tested: the multi-class Brier score has mean $1 - \sum_k p_k^2$ and
    variance $4 (\sum_k p_k^3 - (\sum_k p_k^2)^2)$ for each example.

    References:
        Spiegelhalter, Probabilistic prediction in patient management and clinical trials,
            Statistics in Medicine 1986.
    """
    _refuse_weights_and_groups(predictions)
    if every_class:
        square = predictions.example_stats.squared_norm.numpy()
        cubes = predictions.map_scaled(
            lambda _, scaled, total: ((scaled / total[:, None]).astype(np.float64) ** 3).sum(1)
        )
        cube = np.concatenate(list(cubes))
        surprise = 2 * (square - predictions.example_stats.label_prob.numpy())
        variance = 4 * (cube - square**2).clip(0)
    else:
        confidence, correct = predictions.confidence.numpy(), predictions.correct.numpy()
        surprise = (correct - confidence) * (1 - 2 * confidence)
        variance = (1 - 2 * confidence) ** 2 * confidence * (1 - confidence).clip(0)
    total, spread = surprise.sum(), np.sqrt(variance.sum())
    if spread == 0:
        # All predictions have probability 1: a single error rejects calibration.
        return TestResult(0.0, 1.0) if abs(total) < 1e-12 else TestResult(float("inf"), 0.0)
    z = float(total / spread)
    return TestResult(z, float(2 * stats.norm.sf(abs(z))))


def consistency_test(
    predictions: Predictions,
    *,
    bins: Bins = 15,
    positive: bool = False,
    resamples: int = 1000,
    seed: int = 0,
) -> TestResult:
    r"""Is the ECE larger than that of calibrated predictions?

    Correctness is resampled from the confidences, $c_i^* \sim \mathrm{Bernoulli}(r_i)$, which gives
    calibrated sets with the same confidences. The p-value is the fraction of them, including the
    observed one, whose ECE is at least the observed. With `positive` the probability of class 1 of
    two is tested in place of the confidence, in which errors at p and 1 - p can cancel.

    References:
        Broecker and Smith, Increasing the Reliability of Reliability Diagrams, Weather and
            Forecasting 2007.
    """
    _refuse_weights_and_groups(predictions)
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    edges = bin_edges(bins)
    if positive:
        confidence, happened = positive_values(predictions)
        observed = BinSums.of_confidence(confidence, happened, bins=bins).ece
    else:
        confidence = predictions.confidence.numpy()
        observed = BinSums.of(predictions, bins).ece
    index = bin_index(confidence, edges)
    generator = np.random.default_rng(seed)
    draw = _normal_gaps if len(confidence) > LARGE else _bernoulli_gaps
    gaps = draw(confidence, index, resamples, generator)
    extreme = int((np.abs(gaps).sum(1) / len(confidence) >= observed - 1e-12).sum())
    return TestResult(observed, (extreme + 1) / (resamples + 1), 1 / (resamples + 1))


def cumulative_test(
    predictions: Predictions,
    *,
    positive: bool = False,
    statistic: Literal["range", "maximum"] = "range",
) -> TestResult:
    r"""Are cumulative errors larger than those of calibrated predictions? No bins, no resampling.

    The statistic is `ecce` (or `ks`, the "maximum") divided by its standard error,

    $$\sigma = \frac1n \Bigl(\sum_i r_i (1 - r_i)\Bigr)^{1/2}$$

    Under calibration the cumulative errors are close to Brownian motion, whose range (or maximum)
    gives the p-value. It finds errors of one sign over any interval of confidence; errors that
    change sign within short intervals cancel. Ties make it conservative: between the levels of
    confidence the sums are not seen. With `positive` the probability of class 1 of two is tested in
    place of the confidence.

    References:
        Arrieta-Ibarra et al., Metrics of Calibration for Probabilistic Predictions, JMLR 2022,
            arXiv:2205.09680.
    """
    _refuse_weights_and_groups(predictions)
    tails = {"range": range_tail, "maximum": maximum_tail}
    if statistic not in tails:
        raise ValueError(f"statistic must be one of range, maximum, got {statistic!r}")
    if positive:
        confidence, happened = positive_values(predictions)
    else:
        confidence, happened = predictions.confidence.numpy(), predictions.correct.numpy()
    found = standard_walk(confidence, happened - confidence, confidence * (1 - confidence))
    value = found.range if statistic == "range" else found.maximum
    return TestResult(value, tails[statistic](value))


@dataclass(frozen=True)
class StandardWalk:
    """Range and largest absolute value of cumulative sums, in standard errors of the last one."""

    range: float
    maximum: float


def standard_walk(score: Values, residual: Values, variance: Values) -> StandardWalk:
    """Sum residuals in the order of a score, ties together, and divide by the standard error."""
    order = score.argsort(kind="stable")
    sums = np.cumsum(np.add.reduceat(residual[order], tie_starts(score[order])))
    high, low = max(float(sums.max()), 0.0), min(float(sums.min()), 0.0)
    spread = float(np.sqrt(variance.clip(0).sum()))
    if spread == 0:
        # All predictions have probability 1: a single error rejects calibration.
        at = 0.0 if high - low < 1e-12 else float("inf")
        return StandardWalk(at, at)
    return StandardWalk((high - low) / spread, max(high, -low) / spread)


def _bernoulli_gaps(
    confidence: Values, index: Index, resamples: int, generator: np.random.Generator
) -> Gaps:
    """Sum of drawn correctness minus confidence, in each bin of each resample."""
    # Sorted by bin, each bin is one slice, for many resampled sets at once.
    order = index.argsort(kind="stable")
    filled, starts = np.unique(index[order], return_index=True)
    expected = np.bincount(index, confidence)[filled]
    ordered = confidence[order].astype(np.float32)
    rows = max(1, (1 << 20) // len(ordered))
    gaps = np.empty((resamples, len(filled)))
    for start in range(0, resamples, rows):
        size = (min(rows, resamples - start), len(ordered))
        redrawn = generator.random(size, dtype=np.float32) < ordered
        hits = np.add.reduceat(redrawn, starts, axis=1, dtype=np.int64)
        gaps[start : start + rows] = hits - expected
    return gaps


def _normal_gaps(
    confidence: Values, index: Index, resamples: int, generator: np.random.Generator
) -> Gaps:
    """The same for many examples, whose sums are close to normal."""
    variance = np.bincount(index, confidence * (1 - confidence)).clip(0)
    return np.asarray(generator.standard_normal((resamples, len(variance))) * np.sqrt(variance))


def _refuse_weights_and_groups(predictions: Predictions) -> None:
    for name in ("weights", "groups"):
        if getattr(predictions, name) is not None:
            raise ValueError(
                f"tests of calibration need independent, unweighted examples, not {name}; "
                "make Predictions without them if they are"
            )
