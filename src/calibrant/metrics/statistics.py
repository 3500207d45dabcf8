"""Which metric has which form for resampling."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from calibrant.metrics import binned, classwise, grouped, kernel, scores, simplex
from calibrant.metrics.statistic import Statistic
from calibrant.predictions import Predictions

Metric = Callable[[Predictions], float]


def _calibration_error(
    predictions: Predictions, *, bins: Any = 15, norm: float | str = "l1"
) -> Statistic:
    power = binned.check_norm(norm)
    return binned.binned_statistic(
        predictions, bins=bins, measure=lambda sums: float(sums.error(power))
    )


STATISTICS: dict[Callable[..., float], Callable[..., Statistic]] = {
    binned.calibration_error: _calibration_error,
    binned.ece: partial(binned.binned_statistic, measure=lambda sums: sums.ece),
    binned.mce: partial(binned.binned_statistic, measure=lambda sums: sums.mce),
    binned.rmsce: partial(binned.binned_statistic, measure=lambda sums: sums.rmsce),
    binned.debiased_ece: partial(binned.binned_statistic, measure=binned.without_noise_l1),
    binned.debiased_rmsce: partial(binned.binned_statistic, measure=binned.without_noise_l2),
    binned.adaptive_ece: binned.adaptive_ece_statistic,
    classwise.classwise_ece: classwise.classwise_ece_statistic,
    grouped.group_ece: grouped.group_ece_statistic,
    kernel.sece: kernel.sece_statistic,
    kernel.smece: kernel.smece_statistic,
    scores.nll: partial(scores.mean_statistic, of_example=scores.nll_values),
    scores.brier: partial(scores.mean_statistic, of_example=scores.brier_values),
    scores.accuracy: partial(scores.mean_statistic, of_example=scores.correct_values),
    scores.overconfidence: partial(scores.mean_statistic, of_example=scores.excess_values),
    scores.ks: scores.ks_statistic,
    scores.aurc: scores.aurc_statistic,
    simplex.simplex_ece: simplex.simplex_ece_statistic,
}

# Those that are zero when predictions are calibrated, and read noise where they are.
ZERO_IF_CALIBRATED = frozenset(STATISTICS) - {
    scores.nll,
    scores.brier,
    scores.accuracy,
    scores.overconfidence,
    scores.aurc,
}

# What a metric can be at all; intervals are cut there. Any other lies in [0, 1].
RANGES: dict[Callable[..., float], tuple[float, float]] = {
    binned.debiased_ece: (-1.0, 1.0),
    scores.overconfidence: (-1.0, 1.0),
    scores.brier: (0.0, 2.0),
    scores.nll: (0.0, math.inf),
}


def zero_if_calibrated(metric: Metric) -> bool:
    """Whether the metric is a calibration error of ours other than the signed mean gap."""
    return (metric.func if isinstance(metric, partial) else metric) in ZERO_IF_CALIBRATED


def range_of(metric: Metric) -> tuple[float, float]:
    """Smallest and largest possible value; unbounded for functions that are not ours."""
    plain = metric.func if isinstance(metric, partial) else metric
    return RANGES.get(plain, (0.0, 1.0)) if plain in STATISTICS else (-math.inf, math.inf)


def resampler(metric: Metric, predictions: Predictions) -> Statistic:
    """Return a function from counts, how often each example was drawn, to the metric.

    Our own metrics (also with options, as `functools.partial`) are prepared once and reweighted.
    Any other function of Predictions is called on the examples drawn.
    """
    plain = metric.func if isinstance(metric, partial) else metric
    if plain not in STATISTICS:
        return lambda counts: metric(
            predictions.take(np.repeat(np.arange(len(counts)), counts.astype(np.int64)))
        )
    options = metric.keywords if isinstance(metric, partial) else {}
    statistic = STATISTICS[plain](predictions, **options)
    if predictions.weights is None:
        return statistic
    own = predictions.row_weights
    return lambda counts: statistic(counts * own)
