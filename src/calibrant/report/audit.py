"""The audit of predictions: every metric with its interval, tests, worst classes, a page."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

from calibrant import metrics
from calibrant.metrics import Interval, Summary, TestResult
from calibrant.metrics.resampling.intervals import IntervalType
from calibrant.metrics.verdict import State, class_label, percent
from calibrant.multi_label import MultiLabel
from calibrant.predictions import Predictions
from calibrant.report.next_step import OUTPUT, NextStep, next_step
from calibrant.report.rendering import SavedPage
from calibrant.table_values import Table, count_text, p_text

if TYPE_CHECKING:
    import pandas

    from calibrant.report.label_audit import LabelAudit
    from calibrant.report.model_audits import ModelAudits

# Null hypothesis of each test.
TESTS = {
    "spiegelhalter": "H0: calibrated, by the Brier score",
    "consistency": "H0: calibrated, by the ECE",
    "cumulative": "H0: calibrated, by the ECCE",
}
# The same for two classes.
TESTS_OF_TWO = TESTS | {
    "consistency": "H0: calibrated, by the ECE of P(positive)",
    "cumulative": "H0: calibrated, by the ECCE of P(positive)",
}

# At or above which positives of two classes are counted.
THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True, repr=False)
class Audit(SavedPage):
    """What `audit` found; `to_dict` gives plain values, `save` writes a page.

    The numbers are in `summary`; without resamples its intervals have NaN ends. `file` is how the
    command line names the predictions, and `output` the file to write, for the command of the next
    step. The other fields are the arguments of `audit`.
    """

    predictions: Predictions
    name: str
    bins: int
    level: float
    interval_type: IntervalType
    resamples: int
    seed: int
    summary: Summary
    thresholds: tuple[float, ...] = THRESHOLDS
    file: str = ""
    output: str = OUTPUT

    def __repr__(self) -> str:
        said = self.verdict or f"ECE {self.metrics['ece'].value:.4f}"
        return f"Audit({self.name}, {self.summary.examples:,} examples: {said})"

    @property
    def metrics(self) -> dict[str, Interval]:
        """Each metric with its interval."""
        return self.summary.metrics

    @property
    def gate(self) -> str:
        """Name of the ECE that a limit is compared with: of two classes, that of P(positive)."""
        return "binary_ece" if self.summary.classes == 2 else "ece"

    @property
    def tests(self) -> dict[str, TestResult]:
        """Tests of the hypothesis that the predictions are calibrated."""
        return self.summary.tests

    @property
    def verdict(self) -> str:
        """One sentence: is confidence too high or too low? Empty without resamples."""
        return self.summary.verdict

    @property
    def state(self) -> State | None:
        """Whether the verdict is "calibrated", "miscalibrated" or "unclear"; None without one."""
        found = self.summary.judgement
        return None if found is None else found.state

    @cached_property
    def next_step(self) -> NextStep | None:
        """Which calibrator to fit, and its cross-validated gain; None without a verdict."""
        state = self.state
        if state is None:
            return None
        return next_step(
            self.predictions,
            state,
            bins=self.bins,
            file=self.file,
            output=self.output,
            seed=self.seed,
        )

    @property
    def remarks(self) -> list[str]:
        """What a reader should know about single metrics."""
        infinite = "nll is infinite: the true class of some example has probability 0"
        more = [infinite] if "nll" in self.metrics and math.isinf(self.metrics["nll"].value) else []
        known = self.resamples or self.predictions.top_label_only
        return [*(self.summary.remarks if known else []), *more]

    @property
    def worst_classes(self) -> dict[str, float]:
        """Calibration error of each class, the worst first; without classes that never occur."""
        if self.predictions.top_label_only:
            return {}
        errors = metrics.per_class_ece(self.predictions, bins=self.bins).tolist()
        names = [class_label(each.name) for each in self.summary.class_biases]
        known = [pair for pair in zip(names, errors, strict=True) if math.isfinite(pair[1])]
        return dict(sorted(known, key=lambda pair: -pair[1]))

    @property
    def facts(self) -> str:
        """Size of the data; base rate and mean probability of two classes, else confidence."""
        found = self.summary
        size = f"{found.examples:,} examples, {found.known}, "
        if found.classes == 2:
            positive = found.class_biases[1]
            return size + (
                f"positive class {positive.name}: base rate {percent(positive.frequency)}, "
                f"mean probability {percent(positive.mean_probability)}"
            )
        return f"{size}mean confidence {found.mean_confidence:.4f}"

    @property
    def table(self) -> Table:
        """The metrics; see `metrics_table`."""
        return self.metrics_table()

    def metrics_table(self) -> Table:
        """Each metric with its value, interval and meaning."""
        return self.summary.table(intervals=bool(self.resamples))

    def tests_table(self) -> Table:
        """Each test with its p-value and null hypothesis."""
        heads = ["test", "p-value", "null hypothesis"]
        hypotheses = TESTS_OF_TWO if self.summary.classes == 2 else TESTS
        rows = [
            [name, p_text(found.p_value, found.smallest), hypotheses[name]]
            for name, found in self.tests.items()
        ]
        return Table.of(heads, rows, numbers=["p-value"], caption="Tests of calibration")

    def classes_table(self) -> Table:
        """Each class with its frequency, mean probability and error; the worst first."""
        errors = metrics.per_class_ece(self.predictions, bins=self.bins).tolist()
        found = zip(self.summary.class_biases, errors, strict=True)
        rows = [
            [
                class_label(each.name),
                count_text(each.count),
                f"{each.frequency:.4f}",
                f"{each.mean_probability:.4f}",
                f"{each.error:+.4f}",
                p_text(each.p_value),
                "-" if math.isnan(error) else f"{error:.4f}",
            ]
            for each, error in sorted(found, key=lambda pair: -abs(pair[0].error))
        ]
        heads = ["class", "examples", "frequency", "mean probability", "difference", "p-value"]
        heads.append("class ECE")
        return Table.of(heads, rows, numbers=heads[1:], caption="Classes")

    def thresholds_table(self) -> Table:
        """Expected and observed positives at or above each threshold, of two classes."""
        rows = [
            [
                f"{each.threshold:g}",
                count_text(each.flagged),
                f"{each.expected:,.1f}",
                count_text(each.observed),
                "-" if math.isnan(each.precision) else f"{each.precision:.4f}",
                "-" if math.isnan(each.recall) else f"{each.recall:.4f}",
            ]
            for each in metrics.at_thresholds(self.predictions, self.thresholds)
        ]
        heads = ["threshold", "examples", "expected", "observed", "precision", "recall"]
        return Table.of(heads, rows, numbers=heads, caption="Positives at or above thresholds")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `calibrant audit --json` prints them."""
        record: dict[str, Any] = {"source": self.name, "bins": self.bins, "level": self.level}
        if self.resamples:
            record |= {"interval_type": self.interval_type, "resamples": self.resamples}
            record["seed"] = self.seed
            record |= asdict(self.summary) | {"verdict": self.verdict}
            record["next_step"] = asdict(self.next_step) if self.next_step else None
        else:
            values = {name: {"value": found.value} for name, found in self.metrics.items()}
            record |= asdict(self.summary) | {"metrics": values}
            del record["tests"]
        if self.summary.classes == 2:
            rows = metrics.at_thresholds(self.predictions, self.thresholds)
            record["thresholds"] = [asdict(row) | {"precision": row.precision} for row in rows]
        return record | {"remarks": self.remarks}

    def to_html(self) -> str:
        """A self-contained page; the same predictions give the same bytes."""
        from calibrant.report.audit_page import audit_page

        return audit_page(self)

    def to_pandas(self) -> "pandas.DataFrame":
        """A row for each metric: value, low and high."""
        return self.summary.to_pandas()

    def _repr_html_(self) -> str:
        from calibrant.report.audit_page import audit_fragment

        return audit_fragment(self)


@overload
def audit(predictions: Predictions, **options: Any) -> Audit: ...


@overload
def audit(predictions: Mapping[str, Predictions], **options: Any) -> "ModelAudits": ...


@overload
def audit(predictions: MultiLabel, **options: Any) -> "LabelAudit": ...


# The overloads tell types apart and leave the options to this one.
def audit(  # type: ignore[misc]
    predictions: Predictions | Mapping[str, Predictions] | MultiLabel,
    *,
    name: str = "predictions",
    bins: int = 15,
    level: float = 0.95,
    interval_type: IntervalType = "basic",
    resamples: int = 1000,
    seed: int = 0,
    positive: int | str | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
    paired: bool | None = None,
    progress: Callable[[], None] | None = None,
) -> "Audit | ModelAudits | LabelAudit":
    """Measure all metrics with intervals, test calibration, and recommend a next step.

    With two classes, the audit is about the probability of the positive class.

    Args:
        predictions: predictions to audit; several models by name are compared. Of a `MultiLabel`,
            every label is measured, and `positive`, `thresholds` and `paired` have no use.
        name: name of the predictions, the title of the page.
        bins: number of bins of binned metrics and of the reliability diagram.
        level: confidence level of the intervals.
        interval_type: bootstrap interval type, "percentile", "basic" or "bca".
        resamples: number of bootstrap resamples; 0 gives values without intervals, tests and
            verdict.
        seed: seed of the bootstrap.
        positive: index or name of the positive class, if there are two classes; class 1 by default.
        thresholds: probabilities at which expected and observed positives are counted, if there are
            two classes.
        paired: whether several models have the same examples in the same order; by default, if
            their labels are equal.
        progress: called once for each resample.

    Returns:
        The audit; a `ModelAudits` of several models, a `LabelAudit` of several labels.

    Examples:
        >>> import calibrant
        >>> example = calibrant.data.SYNTHETIC["overconfident"].sample(1000, seed=0)
        >>> calibrant.audit(example.predictions, resamples=100).verdict
        'over-confident: confidence is 10.8 points above accuracy on average'
    """
    if isinstance(predictions, MultiLabel):
        from calibrant.report.label_audit import audit_labels

        return audit_labels(
            predictions,
            name=name,
            bins=bins,
            level=level,
            interval_type=interval_type,
            resamples=resamples,
            seed=seed,
            progress=progress,
        )
    if not isinstance(predictions, Predictions):
        from calibrant.report.model_audits import audit_models

        return audit_models(
            predictions,
            paired=paired,
            bins=bins,
            level=level,
            interval_type=interval_type,
            resamples=resamples,
            seed=seed,
            positive=positive,
            thresholds=thresholds,
            progress=progress,
        )
    if positive is not None:
        predictions = predictions.with_positive(positive)
    summary = metrics.summary(
        predictions,
        bins=bins,
        level=level,
        resamples=resamples,
        seed=seed,
        interval_type=interval_type,
        progress=progress,
    )
    options = (bins, level, interval_type, resamples, seed)
    return Audit(predictions, name, *options, summary, tuple(thresholds))
