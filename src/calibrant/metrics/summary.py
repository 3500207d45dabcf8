"""All metrics with their intervals, in one table."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from calibrant.metrics.hypothesis_tests import TestResult, consistency_test, spiegelhalter
from calibrant.metrics.registry import METRICS
from calibrant.metrics.resampling.intervals import Interval, Method, intervals
from calibrant.predictions import Predictions

# Fewer examples are too few for a verdict.
FEW = 30


@dataclass(frozen=True)
class Summary:
    """Result of `summary`; prints as a table.

    Attributes:
        examples: number of examples.
        classes: number of classes.
        mean_confidence: of the predicted class.
        metrics: name to value and interval.
        tests: name to result, of two tests of calibration; empty without resamples, and with
            weights or groups, because the tests need independent examples.
    """

    examples: int
    classes: int
    mean_confidence: float
    metrics: dict[str, Interval]
    tests: dict[str, TestResult]

    def __str__(self) -> str:
        level = round(100 * next(iter(self.metrics.values())).level)
        lines = [
            f"{self.examples:,} examples, {self.classes:,} classes",
            f"{'metric':16} {'value':>8}   {level}% interval",
        ]
        for name, found in self.metrics.items():
            lines.append(f"{name:16} {found.value:8.4f}   {found.low:.4f} to {found.high:.4f}")
        for name, test in self.tests.items():
            lines.append(f"{name:16} p = {test.p_value:.3g}")
        return "\n".join([*lines, *self.remarks, self.verdict])

    @property
    def remarks(self) -> list[str]:
        """Notes on single metrics."""
        said = "the interval is corrected for the bias of the value, and excludes the value"
        return [
            f"{name}: {said}"
            for name, bar in self.metrics.items()
            if bar.value < bar.low or bar.value > bar.high
        ]

    @property
    def verdict(self) -> str:
        """One sentence: whether confidence is too high or too low; empty without intervals."""
        excess = self.metrics["overconfidence"]
        if math.isnan(excess.low):
            return ""
        if self.examples < FEW:
            return f"{self.examples} examples are too few for a verdict"
        points = f"{100 * abs(excess.value):.1f} points"
        if excess.low > 0:
            return f"over-confident: confidence is {points} above accuracy on average"
        if excess.high < 0:
            return f"under-confident: confidence is {points} below accuracy on average"
        if "consistency" in self.tests and self.tests["consistency"].p_value < 0.05:
            return "calibrated on average, but not at every level of confidence"
        return f"no miscalibration detected with {self.examples:,} examples"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"remarks": self.remarks, "verdict": self.verdict}


def summary(
    predictions: Predictions,
    *,
    bins: int = 15,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    method: Method = "basic",
    progress: Callable[[], None] | None = None,
) -> Summary:
    """Evaluate all `METRICS`, with bootstrap intervals, and test calibration.

    Options as in `interval`; `bins` is passed to every metric with bins of the confidence. Without
    `resamples` the ends of the intervals are NaN, and there are no tests.
    """
    measures = {name: metric.with_bins(bins) for name, metric in METRICS.items()}
    if resamples:
        found = intervals(
            measures,
            predictions,
            level=level,
            resamples=resamples,
            seed=seed,
            method=method,
            progress=progress,
        )
    else:
        found = {
            name: Interval(measure(predictions), math.nan, math.nan, level)
            for name, measure in measures.items()
        }
    tests = {}
    if resamples and predictions.weights is None and predictions.groups is None:
        tests = {
            "spiegelhalter": spiegelhalter(predictions),
            "consistency": consistency_test(predictions, bins=bins, resamples=resamples, seed=seed),
        }
    return Summary(
        len(predictions),
        predictions.classes,
        found["accuracy"].value + found["overconfidence"].value,
        found,
        tests,
    )
