"""Metrics of two-class problems: the probability of the positive class, class 1."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from calibrant.metrics.binned import tie_starts, without_noise_l1
from calibrant.metrics.bins import (
    Bins,
    BinSums,
    bin_edges,
    bin_index,
    check_count,
    segment_sum,
    warn_if_thin,
)
from calibrant.metrics.metric import Statistic, at_own_weights
from calibrant.predictions import Predictions
from calibrant.shapes import Values

PerScore = Float64[np.ndarray, " d"]  # of each distinct score


def positive_values(predictions: Predictions) -> tuple[Values, Values]:
    """Probability of class 1, and one where it is the label, (n,) each."""
    return predictions.positive_probs.numpy(), (predictions.labels == 1).double().numpy()


def mean_probability(predictions: Predictions) -> float:
    """Mean probability of class 1: the fraction of positives that the model expects."""
    return float(np.average(positive_values(predictions)[0], weights=predictions.example_weights))


def base_rate(predictions: Predictions) -> float:
    """Fraction of examples of class 1."""
    return float(np.average(positive_values(predictions)[1], weights=predictions.example_weights))


def calibration_in_the_large(predictions: Predictions) -> float:
    r"""Mean probability of class 1 minus its frequency: above zero, positives are over-predicted.

    $$\frac1n \sum_i (p_i - y_i)$$

    References:
        Van Calster et al., Calibration: the Achilles heel of predictive analytics, BMC Medicine
            2019.
    """
    return float(np.average(excess_positive(predictions), weights=predictions.example_weights))


def excess_positive(predictions: Predictions) -> Values:
    """Probability of class 1 minus its label, (n,)."""
    probs, positive = positive_values(predictions)
    return np.asarray(probs - positive)


def binary_ece(predictions: Predictions, *, bins: int = 15) -> float:
    r"""Expected calibration error of the probability of class 1, over equal-width bins of [0, 1].

    $$\sum_b \frac{n_b}{n} \, |\bar p_b - \bar y_b|$$

    `ece` is that of the predicted class, whose confidence is at least one half.
    """
    warn_if_thin(len(predictions), check_count(bins))
    return positive_sums(predictions, bins=bins).ece


def positive_sums(predictions: Predictions, *, bins: Bins = 15) -> BinSums:
    """Sums of probability and labels of class 1 over bins of its probability."""
    probs, positive = positive_values(predictions)
    return BinSums.of_confidence(probs, positive, bins=bins, weights=predictions.example_weights)


def binary_ece_statistic(predictions: Predictions, *, bins: int = 15) -> Statistic:
    """Prepare `binary_ece` for resampling."""
    probs, positive = positive_values(predictions)
    index, gap = bin_index(probs, bin_edges(bins)), probs - positive
    return lambda weights: float(
        np.abs(segment_sum(index, weights * gap, bins)).sum() / weights.sum()
    )


def debiased_binary_ece(predictions: Predictions, *, bins: int = 15) -> float:
    """ECE of the probability of class 1 minus an estimate of its sampling bias.

    As `debiased_ece` of the confidence; models may be compared by it.
    """
    warn_if_thin(len(predictions), check_count(bins))
    return without_noise_l1(positive_sums(predictions, bins=bins))


def debiased_binary_ece_statistic(predictions: Predictions, *, bins: int = 15) -> Statistic:
    """Prepare `debiased_binary_ece` for resampling."""
    (probs, positive), edges = positive_values(predictions), tuple(bin_edges(bins))
    index = bin_index(probs, bin_edges(bins))

    def statistic(weights: Values) -> float:
        count, total, hits = (
            segment_sum(index, part, bins)
            for part in (weights, weights * probs, weights * positive)
        )
        return without_noise_l1(BinSums(count, total, hits, edges))

    return statistic


def binary_brier(predictions: Predictions) -> float:
    r"""Brier score of the probability of class 1, from 0 to 1: half of `brier`.

    $$\frac1n \sum_i (p_i - y_i)^2$$
    """
    return float(np.average(squared_error(predictions), weights=predictions.example_weights))


def squared_error(predictions: Predictions) -> Values:
    """Squared error of the probability of class 1, (n,)."""
    return np.asarray(excess_positive(predictions) ** 2)


def brier_skill(predictions: Predictions) -> float:
    r"""Brier skill score: the part of the base rate's Brier score that the model removes.

    $$1 - \frac{\sum_i (p_i - y_i)^2}{\sum_i (\bar y - y_i)^2}$$

    1 is perfect, 0 no better than always predicting the base rate, below 0 worse. NaN if all
    labels are equal.

    References:
        Murphy, Skill Scores Based on the Mean Square Error, Monthly Weather Review 1988.
    """
    return at_own_weights(predictions, brier_skill_statistic(predictions))


def brier_skill_statistic(predictions: Predictions) -> Statistic:
    """Prepare `brier_skill` for resampling."""
    square = squared_error(predictions)
    positive = positive_values(predictions)[1]

    def statistic(weights: Values) -> float:
        rate = float(np.einsum("n,n->", weights, positive) / weights.sum())
        score = float(np.einsum("n,n->", weights, square) / weights.sum())
        return 1 - score / (rate * (1 - rate)) if 0 < rate < 1 else math.nan

    return statistic


def roc_auc(predictions: Predictions) -> float:
    """Area under the ROC curve: how often a positive has a higher score than a negative.

    Ties count half. It depends on the ranking only, not on calibration. NaN if all labels are
    equal.
    """
    return at_own_weights(predictions, roc_auc_statistic(predictions))


def roc_auc_statistic(predictions: Predictions) -> Statistic:
    """Prepare `roc_auc` for resampling."""
    tied = _tied_sums(predictions)

    def statistic(weights: Values) -> float:
        ones, zeros = tied(weights)
        below = np.cumsum(zeros) - zeros / 2
        pairs = ones.sum() * zeros.sum()
        return float(ones @ below / pairs) if pairs > 0 else math.nan

    return statistic


def average_precision(predictions: Predictions) -> float:
    r"""Average precision: mean precision over the positives, as the threshold falls.

    $$\sum_t (R_t - R_{t-1}) \, P_t$$

    with recall R and precision P at each distinct score, from the highest. A constant score has the
    base rate. NaN without positives.
    """
    return at_own_weights(predictions, average_precision_statistic(predictions))


def average_precision_statistic(predictions: Predictions) -> Statistic:
    """Prepare `average_precision` for resampling."""
    tied = _tied_sums(predictions)

    def statistic(weights: Values) -> float:
        ones, zeros = (part[::-1] for part in tied(weights))
        flagged = np.cumsum(ones + zeros)
        precision = np.cumsum(ones) / np.where(flagged > 0, flagged, 1)
        total = ones.sum()
        return float(ones @ precision / total) if total > 0 else math.nan

    return statistic


def _tied_sums(predictions: Predictions) -> Callable[[Values], tuple[PerScore, PerScore]]:
    """Weights of positives and negatives at each distinct score, from the lowest."""
    odds = predictions.log_odds.numpy()
    order = predictions.by_log_odds
    starts = tie_starts(odds[order])
    positive = positive_values(predictions)[1][order]

    def sums(weights: Values) -> tuple[PerScore, PerScore]:
        own = weights[order]
        ones = np.add.reduceat(own * positive, starts)
        return ones, np.add.reduceat(own, starts) - ones

    return sums


@dataclass(frozen=True)
class AtThreshold:
    """Examples whose probability of class 1 is at least a threshold.

    Attributes:
        threshold: the smallest probability.
        flagged: number (weight) of examples at or above it.
        expected: positives among them that the probabilities predict, their sum.
        observed: positives among them.
        recall: fraction of all positives among them; NaN without positives.
    """

    threshold: float
    flagged: float
    expected: float
    observed: float
    recall: float

    @property
    def precision(self) -> float:
        """Observed fraction of positives; NaN if none is flagged."""
        return self.observed / self.flagged if self.flagged else math.nan


def at_thresholds(predictions: Predictions, thresholds: Sequence[float]) -> list[AtThreshold]:
    """Expected and observed positives among examples at or above each threshold.

    Examples:
        >>> p = Predictions.from_binary([0.9, 0.6, 0.2], [1, 0, 0], kind="probs")
        >>> row = at_thresholds(p, [0.5])[0]
        >>> row.flagged, row.expected, row.observed, row.precision
        (2.0, 1.5, 1.0, 0.5)
    """
    for each in thresholds:
        if not 0 <= each <= 1:
            raise ValueError(f"thresholds must lie in [0, 1], got {each}")
    probs, positive = positive_values(predictions)
    weights = predictions.example_weights
    levels = np.unique(np.asarray(thresholds, dtype=np.float64))
    # Interval of each probability; the sums from an interval upwards are those of a threshold.
    index = np.searchsorted(levels, probs, side="right")
    sums = [
        segment_sum(index, each, len(levels) + 1)[::-1].cumsum()[::-1]
        for each in (weights, weights * probs, weights * positive)
    ]
    total, found = float(sums[2][0]), []
    for threshold in thresholds:
        at = int(np.searchsorted(levels, threshold)) + 1
        flagged, expected, observed = (float(each[at]) for each in sums)
        recall = observed / total if total else math.nan
        found.append(AtThreshold(threshold, flagged, expected, observed, recall))
    return found
