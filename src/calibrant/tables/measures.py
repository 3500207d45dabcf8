"""Metrics and intervals from the sums of a table, without a second scan."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy import stats

from calibrant.metrics import Interval, TestResult
from calibrant.metrics.binned import without_noise
from calibrant.metrics.bins import BinSums, segment_sum
from calibrant.metrics.registry import METRICS
from calibrant.metrics.resampling.intervals import quantiles
from calibrant.tables.table_sums import TableSums

# Bins are pooled until so many events are expected to vary, for the chi-squared approximation.
LEAST_VARIANCE = 5.0
Draws = Float64[np.ndarray, "r"]


@dataclass(frozen=True)
class Measure:
    """A metric as a function of sums.

    Attributes:
        value: the metric of a table.
        error: its standard error, for a mean over examples; None for a function of bins.
        binned: for a function of bins: draws of the sums of `part` to draws of the metric.
        part: which sums, given the table's.
    """

    value: Callable[[TableSums], float]
    error: Callable[[TableSums], float] | None = None
    binned: Callable[[BinSums], Float64[np.ndarray, "..."]] | None = None
    part: Callable[[TableSums], int] = lambda sums: 0


def _mean(first: str, second: str) -> Measure:
    """A mean over examples, from the sum and the sum of squares (both may be weighted)."""

    def error(sums: TableSums) -> float:
        mean = sums.total(first) / sums.total("w")
        square = sums.total(second) - 2 * mean * sums.total(f"{first}_w2")
        return _root(square + mean**2 * sums.total("w2")) / sums.total("w")

    return Measure(lambda sums: sums.total(first) / sums.total("w"), error)


def _gap(part: int) -> Measure:
    """Mean value minus mean hit of a part."""

    def value(sums: TableSums) -> float:
        return (sums.total("v", part) - sums.total("h", part)) / sums.total("w", part)

    def error(sums: TableSums) -> float:
        square = _squared_gaps(sums, part, "_w2")
        linear = sums.total("v_w2", part) - sums.total("h_w2", part)
        mean = value(sums)
        raw = square - 2 * mean * linear + mean**2 * sums.total("w2", part)
        return _root(raw) / sums.total("w", part)

    return Measure(value, error)


def _squared_gaps(sums: TableSums, part: int, kind: str = "") -> float:
    return (
        sums.total(f"vv{kind}", part)
        - 2 * sums.total(f"vh{kind}", part)
        + sums.total(f"h{kind}", part)
    )


def _binned(measure: Callable[[BinSums], Any], *, positive: bool = False) -> Measure:
    part = 2 if positive else 0
    return Measure(lambda sums: float(measure(sums.part(part))), None, measure, lambda sums: part)


def _nll(sums: TableSums) -> float:
    return math.inf if sums.total("zero") else sums.total("nll") / sums.total("w")


def _classwise(sums: TableSums) -> float:
    found = [sums.part(at) for at in range(1, sums.classes + 1)]
    return float(np.mean([each.ece for each in found if each.correct.any()]))


def _adaptive(sums: TableSums) -> float:
    found = sums.adaptive()
    return math.nan if found is None else found.ece


def _skill(sums: TableSums) -> float:
    rate = sums.total("h", 2) / sums.total("w", 2)
    brier = _squared_gaps(sums, 2) / sums.total("w", 2)
    return 1 - brier / (rate * (1 - rate)) if 0 < rate < 1 else math.nan


def _root(value: float) -> float:
    return math.sqrt(max(0.0, value))


_MEAN_NLL = _mean("nll", "nll_nll")
# By the names of `METRICS`; the others of that dict need every example.
MEASURES: dict[str, Measure] = {
    "calibration_in_the_large": _gap(2),
    "binary_ece": _binned(lambda sums: sums.error(1), positive=True),
    "debiased_binary_ece": _binned(lambda sums: without_noise(sums, 1), positive=True),
    "binary_brier": Measure(lambda sums: _squared_gaps(sums, 2) / sums.total("w", 2)),
    "brier_skill": Measure(_skill),
    "accuracy": Measure(
        lambda sums: sums.total("h") / sums.total("w"),
        lambda sums: _accuracy_error(sums),
    ),
    "nll": Measure(_nll, _MEAN_NLL.error),
    "brier": _mean("brier", "brier_brier"),
    "overconfidence": _gap(0),
    "ece": _binned(lambda sums: sums.error(1)),
    "debiased_ece": _binned(lambda sums: without_noise(sums, 1)),
    "adaptive_ece": Measure(_adaptive),
    "classwise_ece": Measure(_classwise),
    "mce": _binned(lambda sums: sums.error(math.inf)),
    "rmsce": _binned(lambda sums: sums.error(2)),
    "debiased_rmsce": _binned(lambda sums: without_noise(sums, 2)),
    "top_label_brier": Measure(lambda sums: _squared_gaps(sums, 0) / sums.total("w")),
}


def _accuracy_error(sums: TableSums) -> float:
    rate, hits = sums.total("h") / sums.total("w"), sums.total("h_w2")
    return _root(hits - 2 * rate * hits + rate**2 * sums.total("w2")) / sums.total("w")


def measured(
    sums: TableSums,
    *,
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    names: tuple[str, ...] = (),
) -> dict[str, Interval]:
    """Metrics of the sums with intervals; `names` selects some.

    A mean has a normal interval from its sum of squares. A function of bins is evaluated on `draws`
    draws of the sums from their joint normal distribution: under Poisson resampling the sums of
    different bins are independent, and the covariance of (w, v, h) within a bin is the sum of their
    products. The interval is the basic one, extended to zero if calibrated predictions with the
    same scores have errors as large, as in `metrics.interval`. Adaptive and classwise ECE, which
    are functions of more than these sums, have none.
    """
    if not sums.rows:
        raise ValueError("no valid rows")
    chosen = {
        name: measure
        for name, measure in MEASURES.items()
        if (not names or name in names) and _defined(name, sums)
    }
    rng = np.random.default_rng(seed)
    drawn: dict[int, tuple[BinSums, BinSums]] = {}
    found = {}
    for name, measure in chosen.items():
        value = measure.value(sums)
        low = high = math.nan
        if draws and measure.error is not None:
            width = stats.norm.ppf((1 + level) / 2) * measure.error(sums)
            low, high = value - width, value + width
        elif draws and measure.binned is not None:
            part = measure.part(sums)
            if part not in drawn:
                drawn[part] = (
                    drawn_sums(sums, part, draws, rng),
                    calibrated_sums(sums, part, draws, rng),
                )
            resampled, calibrated = (np.asarray(measure.binned(each)) for each in drawn[part])
            bounds = quantiles(resampled, level)
            low, high = 2 * value - bounds[1], 2 * value - bounds[0]
            low, high = np.clip((low, high), *METRICS[name].range)
            if not sums.weighted and (calibrated >= value).mean() > 1 - level:
                low, high = min(low, 0.0), max(high, value, 0.0)
        low, high = np.clip((low, high), *METRICS[name].range)
        found[name] = Interval(value, float(low), float(high), level)
    return found


def _defined(name: str, sums: TableSums) -> bool:
    metric = METRICS[name]
    if sums.classes == 1:
        return not (metric.every_class or metric.two_classes)
    return (
        (sums.classes == 2 or not metric.two_classes)
        and not metric.confidence_only
        and (name != "adaptive_ece" or sums.grid is not None)
    )


def drawn_sums(sums: TableSums, part: int, draws: int, rng: np.random.Generator) -> BinSums:
    """Draws of the sums per bin of a part, (r, b), from their joint normal distribution."""
    first = np.stack([sums.moment(name, part) for name in ("w", "v", "h")], -1)
    w2, v, h, vv, vh = (
        sums.moment(name, part) for name in ("w2", "v_w2", "h_w2", "vv_w2", "vh_w2")
    )
    covariance = np.stack([np.stack(row, -1) for row in ([w2, v, h], [v, vv, vh], [h, vh, h])], -2)
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(values.clip(0))[:, None, :]
    moved = first + np.einsum("bij,rbj->rbi", root, rng.standard_normal((draws, *first.shape)))
    count = moved[..., 0].clip(0)
    empty = count <= 0
    inside = [np.where(empty, 0, moved[..., at].clip(0, count)) for at in (1, 2)]
    return BinSums(count, inside[0], inside[1], sums.part(part).edges)


def calibrated_sums(sums: TableSums, part: int, draws: int, rng: np.random.Generator) -> BinSums:
    """Draws of the sums per bin if the predictions were calibrated: hits vary, scores do not."""
    own = sums.part(part)
    spread = np.sqrt((sums.moment("v_w2", part) - sums.moment("vv_w2", part)).clip(0))
    hits = own.confidence + spread * rng.standard_normal((draws, own.bins))
    shape = hits.shape
    return BinSums(
        np.broadcast_to(own.count, shape),
        np.broadcast_to(own.confidence, shape),
        hits.clip(0, own.count),
        own.edges,
    )


def calibration_test(sums: TableSums) -> TestResult:
    r"""Chi-squared test over bins that the predictions are calibrated.

    $$\sum_b \frac{(\sum_{i \in b} (y_i - p_i))^2}{\sum_{i \in b} p_i (1 - p_i)}$$

    Unlike the test of Hosmer and Lemeshow it knows the variance of each bin, not only its mean, so
    no degree of freedom is lost. Bins are pooled with the next until their variance is at least 5.
    It needs independent examples of equal weight; otherwise the p-value is NaN.
    """
    if sums.weighted or not sums.rows:
        return TestResult(math.nan, math.nan)
    part = sums.focus
    own = sums.part(part)
    variance = (sums.moment("v", part) - sums.moment("vv", part)).clip(0)
    pool = np.minimum(
        variance.cumsum() // LEAST_VARIANCE, max(0, variance.sum() // LEAST_VARIANCE - 1)
    )
    pool = np.unique(pool, return_inverse=True)[1]
    size = int(pool.max()) + 1
    gap = segment_sum(pool, own.correct - own.confidence, size)
    spread = segment_sum(pool, variance, size)
    if not spread.all():
        # Probabilities of exactly 0 or 1 cannot be wrong if calibrated.
        impossible = bool((np.abs(gap[spread == 0]) > 1e-9).any())
        if impossible:
            return TestResult(math.inf, 0.0)
        gap, spread = gap[spread > 0], spread[spread > 0]
        if not len(gap):
            return TestResult(0.0, 1.0)
    statistic = float((gap**2 / spread).sum())
    return TestResult(statistic, float(stats.chi2.sf(statistic, len(gap))))
