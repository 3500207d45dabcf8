"""All metrics with their intervals, in one table."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from calibrant.deprecated import Renamed, with_old_arguments
from calibrant.extras import need
from calibrant.metrics.class_bias import ClassBias, class_biases
from calibrant.metrics.hypothesis_tests import (
    TestResult,
    consistency_test,
    cumulative_test,
    spiegelhalter,
)
from calibrant.metrics.registry import METRICS, metrics_for
from calibrant.metrics.resampling.intervals import Interval, IntervalType, intervals
from calibrant.metrics.resampling.samples import Samples
from calibrant.metrics.verdict import Judgement, judge
from calibrant.predictions import Predictions
from calibrant.table_values import Table, plain_html, range_text

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class Summary:
    """Result of `summary`; prints as a table.

    Attributes:
        examples: number of examples.
        classes: number of classes; 1 if only the confidence is known.
        mean_confidence: mean probability of the predicted class.
        metrics: name to value and interval.
        tests: name to result, of three tests of calibration; empty without resamples, and with
            weights or groups, because the tests need independent examples.
        class_biases: mean probability and frequency of each class; of two, the second is the
            positive class.
        interval_notes: notes on intervals that are not those of a full bootstrap.
    """

    examples: int
    classes: int
    mean_confidence: float
    metrics: dict[str, Interval]
    tests: dict[str, TestResult]
    class_biases: tuple[ClassBias, ...]
    interval_notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        said = self.verdict or f"ECE {self.metrics['ece'].value:.4f}"
        return f"Summary({self.examples:,} examples, {self.known}: {said})"

    def __str__(self) -> str:
        level = round(100 * next(iter(self.metrics.values())).level)
        lines = [
            f"{self.examples:,} examples, {self.known}",
            f"{'metric':24} {'value':>8}   {level}% interval",
        ]
        for name, found in self.metrics.items():
            lines.append(f"{name:24} {found.value:8.4f}   {found.low:.4f} to {found.high:.4f}")
        for name, test in self.tests.items():
            lines.append(f"{name:24} {test}")
        return "\n".join([*lines, *self.remarks, self.verdict])

    @property
    def known(self) -> str:
        """The number of classes, or that only the confidence is known."""
        return "top label only" if self.classes == 1 else f"{self.classes:,} classes"

    @property
    def remarks(self) -> list[str]:
        """Notes on intervals and single metrics."""
        said = "the interval is corrected for the bias of the value, and excludes the value"
        excluded = [
            f"{name}: {said}"
            for name, bar in self.metrics.items()
            if bar.value < bar.low or bar.value > bar.high
        ]
        left_out = [name for name, each in METRICS.items() if each.every_class]
        unknown = f"{', '.join(left_out)}: left out, they need the probabilities of all classes"
        return [*([unknown] if self.classes == 1 else []), *self.interval_notes, *excluded]

    @property
    def judgement(self) -> Judgement | None:
        """The verdict with its state; None without intervals."""
        if math.isnan(self.metrics["overconfidence"].low):
            return None
        return judge(self.examples, self.metrics, self.tests, self.class_biases)

    @property
    def verdict(self) -> str:
        """Whether the predictions are calibrated, and how they are not; empty without intervals."""
        return "" if self.judgement is None else self.judgement.text

    def table(self, *, intervals: bool = True) -> Table:
        """Each metric with its value, interval and meaning."""
        level = 100 * next(iter(self.metrics.values())).level
        ends = [f"{level:g}% interval"] if intervals else []
        rows = [
            [
                name,
                f"{each.value:.4f}",
                *([range_text(each.low, each.high)] if intervals else []),
                METRICS[name].meaning,
            ]
            for name, each in self.metrics.items()
        ]
        heads = ["metric", "value", *ends, "meaning"]
        return Table.of(heads, rows, numbers=["value", *ends], caption="All metrics")

    def _repr_html_(self) -> str:
        return plain_html(replace(self.table(), caption=self.verdict))

    def to_pandas(self) -> "pandas.DataFrame":
        """A row for each metric: value, low and high."""
        pandas = need("pandas", extra="pandas", what="a data frame")
        rows = {name: [each.value, each.low, each.high] for name, each in self.metrics.items()}
        columns = ["value", "low", "high"]
        frame = pandas.DataFrame.from_dict(rows, orient="index", columns=columns)
        return frame.rename_axis("metric")

    as_dict = Renamed()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"remarks": self.remarks, "verdict": self.verdict}


@with_old_arguments
def summary(
    predictions: Predictions,
    *,
    bins: int = 15,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    interval_type: IntervalType = "basic",
    progress: Callable[[], None] | None = None,
) -> Summary:
    """Evaluate all metrics, with bootstrap intervals, and test calibration.

    For two classes those of the positive class, class 1, come first.

    Options as in `interval`; `bins` is passed to every metric with bins of the confidence. Without
    `resamples` the ends of the intervals are NaN, and there are no tests.
    """
    chosen = metrics_for(predictions.classes)
    measures = {name: metric.with_bins(bins) for name, metric in chosen.items()}
    if resamples:
        found = intervals(
            measures,
            predictions,
            level=level,
            resamples=resamples,
            seed=seed,
            interval_type=interval_type,
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
            "consistency": consistency_test(
                predictions,
                bins=bins,
                positive=predictions.classes == 2,
                resamples=resamples,
                seed=seed,
            ),
            "cumulative": cumulative_test(predictions, positive=predictions.classes == 2),
        }
    return Summary(
        len(predictions),
        predictions.classes,
        found["accuracy"].value + found["overconfidence"].value,
        found,
        tests,
        class_biases(predictions),
        tuple(Samples(predictions).notes(measures, resamples)) if resamples else (),
    )
