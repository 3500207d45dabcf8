"""Metrics and intervals from the sums of a table, without a second scan."""

import math
from collections.abc import Callable, Mapping, Sequence
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
from calibrant.tables.clusters import Clusters
from calibrant.tables.table_sums import TableSums

# Bins are pooled until so many events are expected to vary, for the chi-squared approximation.
LEAST_VARIANCE = 5.0
ADAPTIVE = -1
# Fewer rows are far from a normal distribution.
LEAST_ROWS = 10
# Slices that are drawn together.
CHUNK = 64


@dataclass(frozen=True)
class Draw:
    """Sums (..., b) of a part: weight, value, hit, and squared gap; of the table, or many draws."""

    w: Float64[np.ndarray, "..."]
    v: Float64[np.ndarray, "..."]
    h: Float64[np.ndarray, "..."]
    s: Float64[np.ndarray, "..."]
    edges: tuple[float, ...] | None = None

    @property
    def bins(self) -> BinSums:
        """The sums that binned metrics use."""
        return BinSums(self.w, self.v, self.h, self.edges)

    def mean(self, name: str) -> Float64[np.ndarray, "..."]:
        """Mean over all examples."""
        total = self.w.sum(-1)
        return np.asarray(getattr(self, name).sum(-1) / np.where(total > 0, total, np.inf))


Drawn = Sequence[Draw]
Measure = tuple[Callable[[int], Sequence[int]], Callable[[Drawn], Any]]


def _of(part: int, function: Callable[[Draw], Any]) -> Measure:
    """A function of the sums of one part."""
    return (lambda k: [part]), lambda drawn: function(drawn[0])


def _skill(draw: Draw) -> Any:
    rate = draw.mean("h")
    variance = rate * (1 - rate)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(variance > 0, 1 - draw.mean("s") / variance, np.nan)


def _classwise(drawn: Drawn) -> Any:
    errors = np.stack([draw.bins.error(1) for draw in drawn], -1)
    # Classes without labels are left out, as in `metrics.classwise_ece`.
    present = np.stack([draw.h.sum(-1) > 0 for draw in drawn], -1)
    return (errors * present).sum(-1) / present.sum(-1).clip(1)


TOP, POSITIVE = 0, 2
# Part or parts, and the metric as a function of their sums, by the names of `METRICS`; the others
# of that dict need every example.
MEASURES: dict[str, Measure] = {
    "calibration_in_the_large": _of(POSITIVE, lambda d: d.mean("v") - d.mean("h")),
    "binary_ece": _of(POSITIVE, lambda d: d.bins.error(1)),
    "debiased_binary_ece": _of(POSITIVE, lambda d: without_noise(d.bins, 1)),
    "binary_brier": _of(POSITIVE, lambda d: d.mean("s")),
    "brier_skill": _of(POSITIVE, _skill),
    "accuracy": _of(TOP, lambda d: d.mean("h")),
    "nll": (lambda k: [k + 1], lambda drawn: drawn[0].mean("v")),
    "brier": (lambda k: [k + 2], lambda drawn: drawn[0].mean("v")),
    "overconfidence": _of(TOP, lambda d: d.mean("v") - d.mean("h")),
    "ece": _of(TOP, lambda d: d.bins.error(1)),
    "debiased_ece": _of(TOP, lambda d: without_noise(d.bins, 1)),
    "adaptive_ece": _of(ADAPTIVE, lambda d: d.bins.error(1)),
    "classwise_ece": (lambda k: range(1, k + 1), _classwise),
    "mce": _of(TOP, lambda d: d.bins.error(math.inf)),
    "rmsce": _of(TOP, lambda d: d.bins.error(2)),
    "debiased_rmsce": _of(TOP, lambda d: without_noise(d.bins, 2)),
    "top_label_brier": _of(TOP, lambda d: d.mean("s")),
}


def values(sums: TableSums, names: Sequence[str] = ()) -> dict[str, float]:
    """Metrics of the sums; `names` selects some."""
    return {
        name: float(function([_own(sums, part) for part in parts]))
        for name, parts, function in _chosen(sums, names)
    }


def measured(
    sums: TableSums,
    *,
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    names: Sequence[str] = (),
    clusters: Clusters | None = None,
) -> dict[str, Interval]:
    """Metrics of the sums with intervals; `names` selects some.

    The sums are drawn `draws` times from their joint normal distribution: under Poisson resampling
    the sums of different bins are independent, and the covariance within a bin follows from its
    moments; with `clusters`, whose rows are drawn together, all bins are dependent. Each metric is
    evaluated on each draw. The interval is the basic one, extended to zero if calibrated
    predictions with the same scores have errors as large, as in `metrics.interval`.

    Equal-mass bins are those of the table in every draw. The classes of classwise ECE are drawn
    independently (two classes as one), so its interval can be a quarter too narrow. With clusters
    both have none. Nor do tables of fewer than 10 rows have any.
    """
    if not sums.rows:
        raise ValueError("no valid rows")
    found, drawn = {}, {}
    rng = np.random.default_rng(seed)
    for name, parts, function in _chosen(sums, names):
        value = float(function([_own(sums, part) for part in parts]))
        ends = (math.nan, math.nan)
        if name == "classwise_ece" and sums.classes == 2:
            # The second class mirrors the first.
            parts, function = [2], lambda d: d[0].bins.error(1)
        enough = draws and sums.rows >= LEAST_ROWS and math.isfinite(value)
        if enough and (clusters is None or clusters.has(parts)):
            for part in parts:
                if part not in drawn:
                    drawn[part] = _drawn(sums, part, draws, rng, clusters)
            resampled, calibrated = (
                np.asarray(function([drawn[part][at] for part in parts]))[:, None] for at in (0, 1)
            )
            ends = _ends(name, np.array([value]), resampled, calibrated, level)[0]
        found[name] = Interval(value, *ends, level)
    return found


def measured_slices(
    slices: Sequence[TableSums], *, level: float = 0.95, draws: int = 200, seed: int = 0
) -> list[dict[str, Interval]]:
    """The metrics of `summary_names` of many slices, as `measured`, but drawn together."""
    rng = np.random.default_rng(seed)
    found: list[dict[str, Interval]] = []
    for start in range(0, len(slices), CHUNK):
        some = slices[start : start + CHUNK]
        focus = some[0].focus
        joint = [each.joint(focus) for each in some]
        first, covariance = (np.stack([each[at] for each in joint]) for at in (0, 1))
        edges = some[0].part(focus).edges
        noise, gaps = _noise(covariance, draws, rng)
        w, v, h, s = np.moveaxis(first, -1, 0)
        own = Draw(w, v, h, s, edges)
        drawn = _moved(first, noise, gaps, edges, probability=True)
        found.extend({} for _ in some)
        for name in summary_names(some[0].classes).values():
            function = MEASURES[name][1]
            value, resampled, calibrated = (np.asarray(function([d])) for d in (own, *drawn))
            ends = _ends(name, value, resampled, calibrated, level)
            for at in range(len(some)):
                found[start + at][name] = Interval(float(value[at]), *ends[at], level)
    return found


def _ends(
    name: str, value: np.ndarray, resampled: np.ndarray, calibrated: np.ndarray, level: float
) -> list[tuple[float, float]]:
    """Ends of basic intervals, given values (s,) and their draws (r, s)."""
    metric, found = METRICS[name], []
    for at, own in enumerate(value):
        bounds = quantiles(resampled[:, at], level)
        low, high = np.clip((2 * own - bounds[1], 2 * own - bounds[0]), *metric.range)
        error = metric.calibration_error and metric.range[0] == 0
        if error and (calibrated[:, at] >= own).mean() > 1 - level:
            low, high = 0.0, max(high, own)
        found.append((float(low), float(high)))
    return found


def bootstrapped(
    sums: TableSums,
    replicates: Sequence[TableSums],
    *,
    level: float = 0.95,
    names: Sequence[str] = (),
) -> dict[str, Interval]:
    """Metrics with basic bootstrap intervals, given the sums of resampled tables."""
    every = [values(each, names) for each in replicates]
    found = {}
    for name, value in values(sums, names).items():
        bounds = quantiles(np.array([each[name] for each in every]), level)
        ends = np.clip((2 * value - bounds[1], 2 * value - bounds[0]), *METRICS[name].range)
        found[name] = Interval(value, float(ends[0]), float(ends[1]), level)
    return found


def _chosen(
    sums: TableSums, names: Sequence[str]
) -> list[tuple[str, list[int], Callable[[Drawn], Any]]]:
    """The measures that are defined for the sums, with their parts."""
    return [
        (name, list(parts(sums.classes)), function)
        for name, (parts, function) in MEASURES.items()
        if (not names or name in names) and _defined(name, sums)
    ]


def _defined(name: str, sums: TableSums) -> bool:
    metric = METRICS[name]
    if name == "adaptive_ece" and not sums.fine:
        return False
    if sums.classes == 1:
        return not (metric.every_class or metric.two_classes)
    return (sums.classes == 2 or not metric.two_classes) and not metric.confidence_only


def _own(sums: TableSums, part: int) -> Draw:
    """The sums of the table itself."""
    if part == ADAPTIVE:
        own = sums.adaptive[1]
        return Draw(own.count, own.confidence, own.correct, np.zeros_like(own.count))
    found = sums.moments(part)
    edges = sums.part(0).edges if part <= sums.classes else None
    return Draw(found["w"], found["v"], found["h"], found["s"], edges)


def _drawn(
    sums: TableSums, part: int, draws: int, rng: np.random.Generator, clusters: Clusters | None
) -> tuple[Draw, Draw]:
    """Draws of the sums of a part, and draws as if its predictions were calibrated."""
    adaptive = part == ADAPTIVE
    first, covariance = sums.joint(0, sums.adaptive[0]) if adaptive else sums.joint(part)
    edges = None if adaptive else _own(sums, part).edges
    noise, gaps = (
        _noise(covariance, draws, rng) if clusters is None else clusters.draws(part, draws, rng)
    )
    return _moved(first, noise, gaps, edges, probability=part <= sums.classes)


def _noise(
    covariance: Float64[np.ndarray, "... b 4 4"], draws: int, rng: np.random.Generator
) -> tuple[Float64[np.ndarray, "r ... b 4"], Float64[np.ndarray, "r ... b"]]:
    """Draws of the sums of independent bins, less their mean; and of the hits if calibrated."""
    roots, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(roots.clip(0))[..., None, :]
    drawn = rng.standard_normal((draws, *covariance.shape[:-1]))
    noise = np.einsum("...ij,r...j->r...i", root, drawn)
    # Of calibrated predictions only the hits vary, by the sum of w2 v (1 - v).
    spread = np.sqrt((covariance[..., 0, 1] - covariance[..., 1, 1]).clip(0))
    return noise, spread * rng.standard_normal((draws, *spread.shape))


def _moved(
    first: Float64[np.ndarray, "... b 4"],
    noise: Float64[np.ndarray, "r ... b 4"],
    gaps: Float64[np.ndarray, "r ... b"],
    edges: tuple[float, ...] | None,
    *,
    probability: bool,
) -> tuple[Draw, Draw]:
    """Draws of the sums, and draws as if the predictions were calibrated."""
    moved = first + noise
    # A draw of a tiny table may lose all of its rows: then it stays as it is.
    empty = (moved[..., 0].clip(0).sum(-1) == 0)[..., None, None]
    w, v, h, s = np.moveaxis(np.where(empty, first, moved), -1, 0)
    w = w.clip(0)
    resampled = Draw(w, v.clip(0, w) if probability else v, h.clip(0, w), s.clip(0), edges)
    hits = (first[..., 1] + gaps).clip(0, first[..., 0])
    same = [np.broadcast_to(first[..., at], gaps.shape) for at in (0, 1, 3)]
    return resampled, Draw(same[0], same[1], hits, same[2], edges)


def calibration_test(sums: TableSums, clusters: Clusters | None = None) -> TestResult:
    r"""Chi-squared test over bins that the predictions are calibrated.

    $$\sum_b \frac{(\sum_{i \in b} w_i (y_i - p_i))^2}{\sum_{i \in b} w_i^2 p_i (1 - p_i)}$$

    Unlike the test of Hosmer and Lemeshow it knows the variance of each bin, not only its mean, so
    no degree of freedom is lost. Bins are pooled with the next until their variance is at least 5
    rows' worth. With clusters the statistic is corrected for their design effects.
    """
    found = sums.moments(sums.focus)
    variance = (found["v2"] - found["q2"]).clip(0)
    gap = found["h"] - found["v"]
    total = variance.sum()
    # Squared weights measured in rows.
    least = LEAST_VARIANCE * (found["w2"].sum() / max(found["n"].sum(), 1))
    pool = np.minimum(variance.cumsum() // least, max(0, total // least - 1))
    pool = np.unique(pool, return_inverse=True)[1]
    size = int(pool.max()) + 1
    gap, spread = segment_sum(pool, gap, size), segment_sum(pool, variance, size)
    if clusters is not None:
        return clusters.test(sums.focus, pool, gap, spread)
    if not spread.all():
        # Probabilities of exactly 0 or 1 cannot be wrong if calibrated.
        if (np.abs(gap[spread == 0]) > 1e-9 * max(1.0, found["w"].sum())).any():
            return TestResult(math.inf, 0.0)
        gap, spread = gap[spread > 0], spread[spread > 0]
    if not len(gap):
        return TestResult(0.0, 1.0)
    statistic = float((gap**2 / spread).sum())
    return TestResult(statistic, float(stats.chi2.sf(statistic, len(gap))))


def summary_names(classes: int) -> Mapping[str, str]:
    """Names of the metrics that a slice or a window is judged by."""
    if classes == 2:
        return {
            "ece": "binary_ece",
            "debiased": "debiased_binary_ece",
            "gap": "calibration_in_the_large",
        }
    return {"ece": "ece", "debiased": "debiased_ece", "gap": "overconfidence"}
