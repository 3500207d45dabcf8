"""Bootstrap confidence intervals."""

import html
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import stats

from calibrant.deprecated import with_old_arguments
from calibrant.metrics.metric import Metric, MetricFunction, Statistic
from calibrant.metrics.registry import descriptor
from calibrant.metrics.resampling.draws import check_units, resampler
from calibrant.metrics.resampling.samples import Sample, Samples
from calibrant.predictions import Predictions
from calibrant.progress import steps
from calibrant.scoped_warnings import without_warnings
from calibrant.shapes import Values

IntervalType = Literal["percentile", "basic", "bca"]
INTERVAL_TYPES = ("percentile", "basic", "bca")
# Blocks left out in turn to estimate the skewness that BCa corrects for.
JACKKNIFE_BLOCKS = 100


@dataclass(frozen=True, repr=False)
class Interval:
    """A value and its confidence interval."""

    value: float
    low: float
    high: float
    level: float = 0.95

    def __repr__(self) -> str:
        return f"Interval({self})"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(str(self))}</code>"

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


@with_old_arguments
def interval(
    metric: MetricFunction,
    predictions: Predictions,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    interval_type: IntervalType = "basic",
    progress: Callable[[], None] | None = None,
) -> Interval:
    """Bootstrap interval of any metric; the same seed gives the same interval.

    Examples are drawn with replacement, or whole groups if the predictions have `groups`, because
    pixels of one image (or visits of one patient) are not independent. Of more than 20,000 examples
    those of equal outcome and almost equal probability are drawn together, which takes seconds for
    millions; metrics of all of three or more classes are resampled on a subset, see `Samples`.

    Args:
        metric: a metric, `functools.partial(ece, bins=20)`, or any function of Predictions.
        predictions: what to measure.
        level: nominal coverage.
        resamples: number of resamples.
        seed: seed of the resamples.
        interval_type: "percentile" uses the quantiles of the resampled values; "basic" reflects
            them about the value; "bca" corrects the quantiles for bias and skewness. Resampling
            adds bias to a binned error, so percentiles are too high, and "basic", which reverses
            the bias, has much better coverage: see docs/bias.md. With all of them the interval of a
            calibration error is extended to zero if calibrated predictions with the same scores
            have errors as large.
        progress: called after each resample; by default long work shows its progress itself.

    References:
        Efron, Better Bootstrap Confidence Intervals, JASA 1987.

    Examples:
        >>> from calibrant.metrics import accuracy
        >>> p = Predictions([[2.0, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> print(interval(accuracy, p))
        0.8000 [0.7200, 0.8800]
    """
    found = intervals(
        {"": metric},
        predictions,
        level=level,
        resamples=resamples,
        seed=seed,
        interval_type=interval_type,
        progress=progress,
    )
    return found[""]


def intervals(
    metrics: Mapping[str, MetricFunction],
    predictions: Predictions,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    interval_type: IntervalType = "basic",
    progress: Callable[[], None] | None = None,
) -> dict[str, Interval]:
    """Intervals of several metrics from the same resamples; options as in `interval`."""
    check_options(level, resamples, interval_type)
    check_units(predictions)
    values = {name: metric(predictions) for name, metric in metrics.items()}
    samples = Samples(predictions)
    sample_of = {name: samples.of(metric) for name, metric in metrics.items()}
    statistics = {name: resampler(metrics[name], each.examples) for name, each in sample_of.items()}
    times = {name: samples.resamples_of(metric, resamples) for name, metric in metrics.items()}
    draws = {name: np.empty(count) for name, count in times.items()}
    streams = {each: each.draws(resamples, seed) for each in sample_of.values()}
    rounds = max(times.values(), default=0)
    with steps(progress, rounds, "resampling") as step:
        for column in range(rounds):
            counts = {each: next(stream) for each, stream in streams.items()}
            for name, row in draws.items():
                if column < len(row):
                    row[column] = statistics[name](counts[sample_of[name]])
            step()
    found, own = {}, {}
    for name, value in values.items():
        sample, statistic = sample_of[name], statistics[name]
        own[name] = sample.own_value(value, statistic)
        row = sample.moved(draws[name], value, own[name])
        bounds = _bounds(value, row, level, interval_type, statistic, sample)
        found[name] = clipped(value, row, bounds, level, descriptor(metrics[name]))
    if predictions.groups is not None or predictions.weights is not None:
        return found
    return _with_zero(found, own, metrics, sample_of, statistics, seed)


def _with_zero(
    found: dict[str, Interval],
    own: Mapping[str, float],
    metrics: Mapping[str, MetricFunction],
    sample_of: Mapping[str, Sample],
    statistics: Mapping[str, Statistic],
    seed: int,
) -> dict[str, Interval]:
    """Extend the interval to zero if calibrated predictions have errors as large.

    Bootstrap intervals do not cover an error of zero, because resampling adds noise to an error
    that cannot be negative. So calibrated predictions are drawn from the same scores, as many as
    a test needs: if all of 19 have smaller errors, the error is significant at 5 %. Otherwise the
    interval includes zero and the value.
    """
    doubtful = {
        name
        for name, bar in found.items()
        if (known := descriptor(metrics[name])) is not None
        and known.calibration_error
        and not bar.low <= 0 <= bar.value <= bar.high
    }
    if not doubtful:
        return found
    draws = math.ceil(1 / (1 - found[min(doubtful)].level) - 1e-9) - 1
    plausible: dict[str, Interval] = {}
    # Computing the value itself has already warned.
    with without_warnings():
        for sample in dict.fromkeys(sample_of[name] for name in sorted(doubtful)):
            left = {name for name in doubtful if sample_of[name] is sample}
            for drawn in sample.calibrated(draws, seed=seed):
                for name in sorted(left):
                    bar = found[name]
                    if isinstance(drawn, Predictions):
                        error = metrics[name](drawn)
                    else:
                        error = statistics[name](drawn)
                    if error >= own[name]:
                        high = max(bar.high, bar.value, 0.0)
                        plausible[name] = replace(bar, low=min(bar.low, 0.0), high=high)
                        left.discard(name)
                if not left:
                    break
    return found | plausible


def _bounds(
    value: float,
    draws: Values,
    level: float,
    interval_type: IntervalType,
    statistic: Statistic,
    sample: Sample,
) -> tuple[float, float]:
    if interval_type == "bca":
        return _bca(value, draws, level, statistic, sample)
    return simple_bounds(value, draws, level, interval_type)


def simple_bounds(
    value: float, draws: Values, level: float, interval_type: IntervalType
) -> tuple[float, float]:
    """Percentile bounds, or basic ones, which reflect them about the value."""
    low, high = quantiles(draws, level)
    return (low, high) if interval_type == "percentile" else (2 * value - high, 2 * value - low)


def clipped(
    value: float, draws: Values, bounds: tuple[float, float], level: float, metric: Metric | None
) -> Interval:
    """The interval within the range of the metric."""
    low, high = np.clip(bounds, *(metric.range if metric else (-math.inf, math.inf)))
    if low == high and draws.min() < draws.max():
        # Reflected and clipped to a single point: use the quantiles.
        low, high = quantiles(draws, level)
    return Interval(value, float(low), float(high), level)


def _bca(
    value: float, draws: Values, level: float, statistic: Statistic, sample: Sample
) -> tuple[float, float]:
    """Bias-corrected and accelerated, with a block jackknife instead of n evaluations."""
    size = len(draws)
    below = (int((draws < value).sum()) + int((draws <= value).sum())) / 2
    bias = stats.norm.ppf(np.clip(below / size, 1 / (size + 1), size / (size + 1)))
    # The skewness of many examples is negligible.
    acceleration = _acceleration(statistic, sample.examples) if sample.is_whole else 0.0
    shifted = bias + stats.norm.ppf([(1 - level) / 2, (1 + level) / 2])
    at = stats.norm.cdf(bias + shifted / (1 - acceleration * shifted))
    low, high = np.quantile(draws, at, method="inverted_cdf")
    return float(low), float(high)


def _acceleration(statistic: Statistic, predictions: Predictions) -> float:
    units = (
        np.arange(len(predictions)) if predictions.groups is None else predictions.groups.numpy()
    )
    blocks = min(JACKKNIFE_BLOCKS, int(units.max()) + 1)
    block = np.random.default_rng(0).permutation(int(units.max()) + 1)[units] % blocks
    left_out = np.array([statistic((block != b).astype(np.float64)) for b in range(blocks)])
    lean = left_out.mean() - left_out
    scale = (lean**2).sum() ** 1.5
    return float((lean**3).sum() / (6 * scale)) if scale > 0 else 0.0


def quantiles(draws: Values, level: float) -> tuple[float, float]:
    """Bounds between which `level` of the draws lie."""
    # Some metrics are not defined if a resample has one class only.
    draws = draws[~np.isnan(draws)]
    if not len(draws):
        return math.nan, math.nan
    # An order statistic, not an interpolation: some values may be infinite.
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    return float(low), float(high)


def check_options(level: float, resamples: int, interval_type: str) -> None:
    """Refuse an invalid level, number of resamples or interval type."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie strictly between 0 and 1, got {level}")
    if isinstance(resamples, bool) or not isinstance(resamples, int) or resamples < 1:
        raise ValueError(f"resamples must be an int >= 1, got {resamples!r}")
    if interval_type not in INTERVAL_TYPES:
        known = ", ".join(INTERVAL_TYPES)
        raise ValueError(f"interval_type must be one of {known}, got {interval_type!r}")
