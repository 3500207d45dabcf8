"""Proper scores, accuracy, and metrics of the order of confidence."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from calibrant.metrics.binned import tie_starts
from calibrant.metrics.classwise import class_sums
from calibrant.metrics.metric import Statistic, at_own_weights
from calibrant.predictions import Predictions
from calibrant.shapes import Values


def mean_statistic(
    predictions: Predictions, *, of_example: Callable[[Predictions], Values]
) -> Statistic:
    """Prepare a mean over examples for resampling."""
    values = of_example(predictions)
    if np.isfinite(values).all():
        # Not `@`: BLAS threads would busy-wait afterwards.
        return lambda weights: float(np.einsum("n,n->", weights, values) / weights.sum())
    # Zero times infinity is NaN: only examples with a weight are summed.
    return lambda weights: float((weights[weights > 0] @ values[weights > 0]) / weights.sum())


def nll_values(predictions: Predictions) -> Values:
    """Negative log-likelihood of each label, (n,)."""
    return -predictions.example_stats.label_log_prob.numpy()


def brier_values(predictions: Predictions) -> Values:
    """Squared distance of each probability vector from its one-hot label, (n,)."""
    stats = predictions.example_stats
    return np.asarray(stats.squared_norm.numpy() - 2 * stats.label_prob.numpy() + 1)


def correct_values(predictions: Predictions) -> Values:
    """One where the predicted class is the label, (n,)."""
    return predictions.correct.numpy()


def excess_values(predictions: Predictions) -> Values:
    """Confidence minus correctness, (n,)."""
    return np.asarray(predictions.confidence.numpy() - predictions.correct.numpy())


def confidence_error_values(predictions: Predictions) -> Values:
    """Squared difference of confidence and correctness, (n,)."""
    return excess_values(predictions) ** 2


def top_label_brier(predictions: Predictions) -> float:
    r"""Brier score of the confidence: its squared difference from correctness, from 0 to 1.

    $$\frac1n \sum_i (r_i - c_i)^2$$

    It needs only the confidence. Other than `brier` it is no proper score of the classifier: a
    model that predicts classes that are almost impossible, with honest confidence, has a low one.

    Examples:
        >>> top_label_brier(Predictions.from_confidence([0.5, 1.0], [True, True]))
        0.125
    """
    values = mean_statistic(predictions, of_example=confidence_error_values)
    return at_own_weights(predictions, values)


def nll(predictions: Predictions) -> float:
    r"""Negative log-likelihood of the labels, in nats.

    $$-\frac1n \sum_i \log p_{i y_i}$$

    A proper score: lower means better calibrated or sharper. Infinite if a label has probability
    zero; probabilities are not clipped.

    Examples:
        >>> p = Predictions.from_probs([[0.5, 0.5], [0.25, 0.75]], [0, 0])
        >>> round(nll(p), 4)  # (log 2 + log 4) / 2
        1.0397
    """
    return at_own_weights(predictions, mean_statistic(predictions, of_example=nll_values))


def brier(predictions: Predictions) -> float:
    r"""Brier score: squared distance of the probabilities from the label, between 0 and 2.

    $$\frac1n \sum_i \sum_k (p_{ik} - 1[y_i = k])^2$$

    Summed over all classes. For two classes many libraries use one probability only, which is half
    of this. `brier_split` decomposes it.

    References:
        Brier, Verification of forecasts expressed in terms of probability, Monthly Weather
            Review 1950.
    """
    return at_own_weights(predictions, mean_statistic(predictions, of_example=brier_values))


@dataclass(frozen=True)
class BrierSplit:
    """Brier score = reliability - resolution + uncertainty + within_bin.

    Attributes:
        reliability: squared gap between forecast and frequency in the bins; zero is calibrated.
        resolution: squared difference of the bins' frequencies and the base rate; higher is better.
        uncertainty: Brier score of predicting the base rates; depends on the labels only.
        within_bin: variance of forecasts within a bin minus twice their covariance with labels.
    """

    reliability: float
    resolution: float
    uncertainty: float
    within_bin: float

    @property
    def brier(self) -> float:
        """The Brier score."""
        return self.reliability - self.resolution + self.uncertainty + self.within_bin


def brier_split(predictions: Predictions, *, bins: int = 15) -> BrierSplit:
    r"""Decompose the Brier score into reliability, resolution and uncertainty.

    For each class, with bin means $\bar p_b$, bin frequencies $\bar y_b$ and base rate $\bar y$,
    then summed over classes:

    $$\sum_b \tfrac{n_b}{n} (\bar p_b - \bar y_b)^2
      - \sum_b \tfrac{n_b}{n} (\bar y_b - \bar y)^2 + \bar y (1 - \bar y) + \text{within}$$

    `within` is the variance of p minus twice its covariance with y inside the bins; it is zero
    if all forecasts of a bin are equal, which gives Murphy's three-part form.

    References:
        Murphy, A new vector partition of the probability score, J. Applied Meteorology 1973.
        Stephenson et al., Two extra components in the Brier score decomposition, Weather and
            Forecasting 2008.
    """
    sums = class_sums(predictions, bins=bins)
    weights = predictions.example_weights
    total, stats = weights.sum(), predictions.example_stats
    filled = np.where(sums.count > 0, sums.count, 1)
    forecast, frequency = sums.confidence / filled, sums.correct / filled
    base = sums.correct.sum(1, keepdims=True) / total
    share = sums.count / total
    variance = weights @ stats.squared_norm.numpy() / total - (share * forecast**2).sum()
    covariance = weights @ stats.label_prob.numpy() / total - (share * forecast * frequency).sum()
    return BrierSplit(
        reliability=float((share * (forecast - frequency) ** 2).sum()),
        resolution=float((share * (frequency - base) ** 2).sum()),
        uncertainty=float((base * (1 - base)).sum()),
        within_bin=float(variance - 2 * covariance),
    )


def accuracy(predictions: Predictions) -> float:
    """Fraction of examples whose most probable class is the label."""
    return at_own_weights(predictions, mean_statistic(predictions, of_example=correct_values))


def overconfidence(predictions: Predictions) -> float:
    r"""Mean confidence minus accuracy: positive is over-confident, negative under-confident.

    $$\frac1n \sum_i (r_i - c_i)$$

    Signed, unbiased, and at most ECE in absolute value, since over- and under-confidence cancel.
    """
    return at_own_weights(predictions, mean_statistic(predictions, of_example=excess_values))


def ks(predictions: Predictions) -> float:
    r"""Kolmogorov-Smirnov calibration error: largest difference of cumulative sums.

    $$\max_t \Bigl| \frac1n \sum_{i : r_i \le t} (c_i - r_i) \Bigr|$$

    No bins. It is the largest absolute sum of residuals below any level of confidence; residuals
    of opposite sign cancel. Ties are summed first. The same number is known as ECCE-MAD, the
    maximum absolute deviation of the cumulative errors; `ecce` is their range.

    References:
        Gupta et al., Calibration of Neural Networks using Splines, ICLR 2021, arXiv:2006.12800.
    """
    return at_own_weights(predictions, ks_statistic(predictions))


def ks_statistic(predictions: Predictions) -> Statistic:
    """Prepare `ks` for resampling."""
    cumulative = _cumulative_errors(predictions)
    return lambda weights: float(np.abs(cumulative(weights)).max() / weights.sum())


def ecce(predictions: Predictions) -> float:
    r"""Estimated cumulative calibration error: range of the cumulative sums of residuals.

    $$\max_{0 \le t \le n} C_t - \min_{0 \le t \le n} C_t, \qquad
      C_t = \frac1n \sum_{i : r_i \le t} (c_i - r_i), \quad C_0 = 0$$

    No bins, bandwidth or other parameter. It is the largest absolute sum of residuals over any
    interval of confidence, so over-confidence at one level does not hide under-confidence at
    another; at least `ks`, at most twice it. Ties are summed first. Calibrated predictions read
    about $1.6 \sigma$, with $\sigma^2 = \sum_i r_i (1 - r_i) / n^2$, see `cumulative_test`.

    Examples:
        >>> p = Predictions.from_binary([0.4, 0.4, 0.2], [1, 0, 0], kind="probs")
        >>> round(ecce(p), 4)  # confidence 0.6, 0.6 and 0.8: C = -0.2 / 3, then 0
        0.0667

    References:
        Arrieta-Ibarra et al., Metrics of Calibration for Probabilistic Predictions, JMLR 2022,
            arXiv:2205.09680.
    """
    return at_own_weights(predictions, ecce_statistic(predictions))


def ecce_statistic(predictions: Predictions) -> Statistic:
    """Prepare `ecce` for resampling."""
    cumulative = _cumulative_errors(predictions)

    def statistic(weights: Values) -> float:
        sums = cumulative(weights)
        return float((max(sums.max(), 0.0) - min(sums.min(), 0.0)) / weights.sum())

    return statistic


def _cumulative_errors(predictions: Predictions) -> Callable[[Values], Values]:
    """Sums of confidence minus correctness up to each level of confidence, given weights."""
    order = predictions.by_confidence
    starts = tie_starts(predictions.confidence.numpy()[order])
    gap = excess_values(predictions)[order]
    return lambda weights: np.cumsum(np.add.reduceat(weights[order] * gap, starts))


def aurc(predictions: Predictions) -> float:
    r"""Area under the risk-coverage curve: mean error rate of selective prediction.

    $$\frac1n \sum_{m=1}^n \frac1m \sum_{j \le m} (1 - c_{(j)})$$

    with examples sorted from the most confident. Lower means that correct predictions have higher
    confidence than wrong ones; it depends on the ranking only. For ties it is the mean over all
    orders, in closed form.

    References:
        Geifman et al., Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers, ICLR
            2019, arXiv:1805.08206.
    """
    return at_own_weights(predictions, aurc_statistic(predictions))


def aurc_statistic(predictions: Predictions) -> Statistic:
    """Prepare `aurc` for resampling."""
    order = predictions.by_confidence[::-1]
    starts = tie_starts(predictions.confidence.numpy()[order])
    wrong = 1 - correct_values(predictions)[order]

    def statistic(weights: Values) -> float:
        own = weights[order]
        size, errors = (np.add.reduceat(part, starts) for part in (own, own * wrong))
        filled = size > 0
        size, errors = size[filled], errors[filled]
        before, errors_before = np.cumsum(size) - size, np.cumsum(errors) - errors
        rate = errors / size
        # Within a run the j-th risk is (E + rate j) / (C + j): its sum over j is harmonic.
        harmonic = special.digamma(before + size + 1) - special.digamma(before + 1)
        risk = rate * size + (errors_before - rate * before) * harmonic
        return float(risk.sum() / own.sum())

    return statistic
