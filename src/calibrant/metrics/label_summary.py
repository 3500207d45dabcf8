"""All metrics of several labels with intervals over whole examples, and a test of each label."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float64

from calibrant.extras import need
from calibrant.metrics.class_bias import class_biases
from calibrant.metrics.hypothesis_tests import spiegelhalter
from calibrant.metrics.metric import MetricFunction
from calibrant.metrics.multi_label import label_predictions, shortened, usable
from calibrant.metrics.registry import METRICS
from calibrant.metrics.resampling.comparisons import holm
from calibrant.metrics.resampling.consistency import redrawn
from calibrant.metrics.resampling.draws import check_units, draws_of, resampler
from calibrant.metrics.resampling.intervals import (
    Interval,
    IntervalType,
    check_options,
    clipped,
    simple_bounds,
)
from calibrant.metrics.resampling.samples import FEWEST
from calibrant.multi_label import MultiLabel
from calibrant.predictions import Predictions
from calibrant.progress import steps
from calibrant.scoped_warnings import without_warnings
from calibrant.shapes import Values

# What a summary measures.
MEASURED = (
    "nll",
    "binary_brier",
    "roc_auc",
    "average_precision",
    "calibration_in_the_large",
    "calibration_slope",
    "binary_ece",
    "debiased_binary_ece",
)
# Entries that all resamples may read, for each metric.
BUDGET = 100_000_000
# Examples of the rarer outcome below which Spiegelhalter's statistic is not normal.
ENOUGH = 20

Draws = Float64[np.ndarray, "resamples k"]


@dataclass(frozen=True)
class LabelResult:
    """What was found about one label.

    Attributes:
        name: its name.
        known: number of examples in which it is known.
        positives: number of examples that have it.
        base_rate: fraction of the known examples (of their weight) that have it.
        mean_probability: mean of its probability over them.
        metrics: name to value and interval; NaN where it is not defined.
        p_value: of the test that it is calibrated; NaN with weights or groups, or without tests.
        corrected: the p-value corrected for the number of labels (Holm).
    """

    name: str
    known: int
    positives: int
    base_rate: float
    mean_probability: float
    metrics: dict[str, Interval]
    p_value: float
    corrected: float

    @property
    def error(self) -> float:
        """Mean probability minus base rate: above zero, the label is over-predicted."""
        return self.mean_probability - self.base_rate


@dataclass(frozen=True)
class LabelSummary:
    """Result of `label_summary`.

    Attributes:
        examples: number of examples.
        entries: number of known labels of all examples.
        labels: what was found about each label, in the order of the columns.
        macro: metric to its mean over labels.
        micro: metric to its value over all known entries.
        notes: labels that were left out of means, and what else a reader should know.
    """

    examples: int
    entries: int
    labels: tuple[LabelResult, ...]
    macro: dict[str, Interval]
    micro: dict[str, Interval]
    notes: tuple[str, ...] = ()

    def to_pandas(self) -> Any:
        """A row for each label, then `macro` and `micro`; a column for each metric."""
        pandas = need("pandas", extra="pandas", what="a data frame")
        rows = {each.name: each.metrics for each in self.labels}
        rows |= {"(macro)": self.macro, "(micro)": self.micro}
        table = {
            row: {name: bar.value for name, bar in found.items()} for row, found in rows.items()
        }
        return pandas.DataFrame.from_dict(table, orient="index").rename_axis("label")


def label_summary(
    multi: MultiLabel,
    *,
    bins: int = 15,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    interval_type: IntervalType = "basic",
    progress: Callable[[], None] | None = None,
) -> LabelSummary:
    """Measure each label, macro and micro, with intervals, and test the calibration of each label.

    Resamples draw whole examples, or groups, with all their labels. Without `resamples` the ends of
    intervals are NaN and nothing is tested.

    Args:
        multi: the labels.
        bins: number of bins of binned metrics.
        level: nominal coverage of the intervals.
        resamples: number of resamples; fewer if there are very many entries.
        seed: seed of the resamples.
        interval_type: "basic" or "percentile".
        progress: called after each resample; by default long work shows its progress itself.
    """
    if interval_type == "bca":
        raise ValueError("interval_type of several labels must be basic or percentile, got 'bca'")
    labels, pooled = label_predictions(multi), multi.pooled()
    measures = {name: METRICS[name].with_bins(bins) for name in MEASURED}
    with without_warnings():
        values = {
            name: np.array([math.nan if p is None else measure(p) for p in labels.values()])
            for name, measure in measures.items()
        }
        micros = {name: measure(pooled) for name, measure in measures.items()}
    used = {name: usable(own, METRICS[name]) for name, own in values.items()}
    times = min(resamples, max(FEWEST, BUDGET // len(pooled)))
    drawn: Mapping[str, tuple[Draws, Values]] = {}
    if resamples:
        check_options(level, resamples, interval_type)
        drawn = _resampled(multi, labels, pooled, measures, times, seed, progress)

    def interval(name: str, value: float, draws: Values | None) -> Interval:
        if draws is None or math.isnan(value):
            return Interval(value, math.nan, math.nan, level)
        bounds = simple_bounds(value, draws, level, interval_type)
        return clipped(value, draws, bounds, level, METRICS[name])

    p_values = [label_p_value(each) if resamples and each is not None else math.nan
                for each in labels.values()]  # fmt: skip
    corrected = _corrected(p_values)
    found = []
    for at, (name, predictions) in enumerate(labels.items()):
        bias = (math.nan, math.nan) if predictions is None else _bias(predictions)
        bars = {
            metric: interval(metric, float(each[at]), drawn[metric][0][:, at] if drawn else None)
            for metric, each in values.items()
        }
        found.append(
            LabelResult(name, *multi.support(at), *bias, bars, p_values[at], corrected[at])
        )
    macros = {}
    for name, each in values.items():
        value = float(each[used[name]].mean()) if used[name].any() else math.nan
        means = _means(drawn[name][0][:, used[name]]) if drawn else None
        macros[name] = interval(name, value, means)
    micro_bars = {
        name: interval(name, value, drawn[name][1] if drawn else None)
        for name, value in micros.items()
    }
    if resamples and multi.weights is None and multi.groups is None:
        for name in MEASURED:
            if METRICS[name].calibration_error:
                null = _calibrated(measures[name], list(labels.values()), level, seed)
                for at, label in enumerate(found):
                    label.metrics[name] = _with_zero(label.metrics[name], null[:, at])
                macros[name] = _with_zero(macros[name], _means(null[:, used[name]]))
                null = _calibrated(measures[name], [pooled], level, seed)
                micro_bars[name] = _with_zero(micro_bars[name], null[:, 0])
    return LabelSummary(
        len(multi),
        len(pooled),
        tuple(found),
        macros,
        micro_bars,
        tuple(_notes(multi, used, times, resamples)),
    )


def _resampled(
    multi: MultiLabel,
    labels: Mapping[str, Predictions | None],
    pooled: Predictions,
    measures: Mapping[str, MetricFunction],
    resamples: int,
    seed: int,
    progress: Callable[[], None] | None,
) -> dict[str, tuple[Draws, Values]]:
    """Each metric of each label, and of all entries, in resamples of examples."""
    n, k = multi.labels.shape
    # What is drawn: one row for each example.
    units = Predictions.from_confidence(
        np.zeros(n), np.zeros(n), weights=multi.weights, groups=multi.groups
    )
    check_units(units)
    rows = [multi.rows(at).numpy() for at in range(k)]
    row_of_entry = multi.known.nonzero()[:, 0].numpy()
    drawn = {name: (np.full((resamples, k), math.nan), np.empty(resamples)) for name in measures}
    with without_warnings():
        forms = {
            name: (
                [None if each is None else resampler(measure, each) for each in labels.values()],
                resampler(measure, pooled),
            )
            for name, measure in measures.items()
        }
    with steps(progress, resamples, "resampling") as step:
        for at, counts in enumerate(draws_of(units, resamples, seed)):
            own = [counts[each] for each in rows]
            drawable = [
                bool((c * multi.example_weights[r]).any()) for c, r in zip(own, rows, strict=True)
            ]
            whole = counts[row_of_entry]
            for name, (of_labels, of_all) in forms.items():
                for column, statistic in enumerate(of_labels):
                    if statistic is not None and drawable[column]:
                        drawn[name][0][at, column] = statistic(own[column])
                drawn[name][1][at] = of_all(whole)
            step()
    return drawn


def _calibrated(
    measure: MetricFunction, parts: Sequence[Predictions | None], level: float, seed: int
) -> Draws:
    """A metric of each part with labels drawn from its probabilities, as often as a test needs."""
    draws = math.ceil(1 / (1 - level) - 1e-9) - 1
    found = np.full((draws, len(parts)), math.nan)
    with without_warnings():
        for at, part in enumerate(parts):
            if part is not None:
                found[:, at] = [measure(each) for each in redrawn(part, draws, seed=seed + at)]
    return found


def _with_zero(bar: Interval, null: Values) -> Interval:
    """Extend the interval of an error to zero if calibrated predictions have errors as large."""
    if bar.low <= 0 <= bar.value <= bar.high or not (null >= bar.value).any():
        return bar
    return replace(bar, low=min(bar.low, 0.0), high=max(bar.high, bar.value, 0.0))


def _means(draws: Draws) -> Values:
    """Mean over the labels in which a resampled metric is defined; NaN where it is in none."""
    known = np.isfinite(draws)
    total = np.where(known, draws, 0).sum(1)
    none = np.full(len(draws), math.nan)
    return np.asarray(np.divide(total, known.sum(1), out=none, where=known.any(1)))


def _bias(predictions: Predictions) -> tuple[float, float]:
    """Base rate and mean probability of class 1."""
    positive = class_biases(predictions)[1]
    return positive.frequency, positive.mean_probability


def label_p_value(predictions: Predictions) -> float:
    """Of the test that a label is calibrated: of its mean, and by Spiegelhalter if not too rare.

    Neither is resampled, so p-values are small enough to be corrected for many labels.
    """
    if predictions.weights is not None or predictions.groups is not None:
        return math.nan
    positive = class_biases(predictions)[1]
    rate = min(positive.frequency, positive.mean_probability)
    most = max(positive.frequency, positive.mean_probability)
    if len(predictions) * min(rate, 1 - most) < ENOUGH:
        return positive.p_value
    return min(1.0, 2 * min(positive.p_value, spiegelhalter(predictions).p_value))


def _corrected(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of those that are known."""
    known = [each for each in p_values if not math.isnan(each)]
    left = iter(holm(known))
    return [math.nan if math.isnan(each) else next(left) for each in p_values]


def _notes(
    multi: MultiLabel, used: Mapping[str, np.ndarray], times: int, resamples: int
) -> list[str]:
    """Labels that are left out of means, by metric, and how many resamples were drawn."""
    left_out: dict[tuple[str, ...], list[str]] = {}
    for metric, own in used.items():
        names = tuple(n for n, ok in zip(multi.label_names, own, strict=True) if not ok)
        if names:
            left_out.setdefault(names, []).append(metric)
    said = [
        f"{', '.join(metrics)}: not defined for {shortened(names)}, left out of macro"
        for names, metrics in left_out.items()
    ]
    if times < resamples:
        said.append(f"intervals: {times} resamples, because of the size")
    return said
