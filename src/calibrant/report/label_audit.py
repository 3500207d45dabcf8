"""The audit of several labels: each label, macro and micro, a verdict, a page."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from calibrant.metrics import METRICS, Interval, LabelResult, LabelSummary, label_summary
from calibrant.metrics.resampling.intervals import IntervalType
from calibrant.metrics.verdict import ALPHA, FEW, State, class_label
from calibrant.multi_label import MultiLabel
from calibrant.report.formatting import ends_text, value_with_interval
from calibrant.report.rendering import SavedPage
from calibrant.table_values import Cell, Column, Table, p_text, range_text

if TYPE_CHECKING:
    import pandas

# Metrics in the table of labels.
SHOWN = ("debiased_binary_ece", "calibration_slope", "roc_auc", "nll")
# Labels that the verdict names.
NAMED = 3


@dataclass(frozen=True, repr=False)
class LabelAudit(SavedPage):
    """What `audit` found about several labels; `to_dict` gives plain values, `save` writes a page.

    The numbers are in `summary`. The other fields are the arguments of `audit`.
    """

    multi: MultiLabel
    name: str
    bins: int
    level: float
    interval_type: IntervalType
    resamples: int
    seed: int
    summary: LabelSummary
    # How the command line names the predictions.
    file: str = ""

    gate = "macro binary_ece"

    def __repr__(self) -> str:
        said = self.verdict or f"macro ECE {self.ece:.4f}"
        return f"LabelAudit({self.name}, {self.facts}: {said})"

    @property
    def ece(self) -> float:
        """The ECE that a limit is compared with: the mean over labels of that of P(label)."""
        return self.summary.macro["binary_ece"].value

    @property
    def facts(self) -> str:
        """Number of examples and labels, and how many labels are missing."""
        n, k = self.summary.examples, len(self.summary.labels)
        missing = 1 - self.summary.entries / (n * k)
        rest = f", {100 * missing:.1f} % of labels missing" if missing else ""
        return f"{n:,} examples, {k:,} labels{rest}"

    @property
    def labels(self) -> list[LabelResult]:
        """The labels: those that are significantly miscalibrated first, then by debiased ECE."""

        def order(each: LabelResult) -> tuple[bool, float]:
            error = each.metrics["debiased_binary_ece"].value
            return not each.corrected < ALPHA, math.inf if math.isnan(error) else -error

        return sorted(self.summary.labels, key=order)

    @property
    def miscalibrated(self) -> list[LabelResult]:
        """Labels that are significantly miscalibrated after Holm's correction, the worst first."""
        return [each for each in self.labels if each.corrected < ALPHA]

    @property
    def state(self) -> State | None:
        """Whether the labels are "calibrated", "miscalibrated" or "unclear"; None if not tested."""
        tested = [each for each in self.summary.labels if not math.isnan(each.corrected)]
        if not tested:
            return None
        if max(each.known for each in tested) < FEW:
            return "unclear"
        return "miscalibrated" if self.miscalibrated else "calibrated"

    @property
    def verdict(self) -> str:
        """How many labels are miscalibrated, and how the worst are; empty if not tested."""
        n, k, worst = self.summary.examples, len(self.summary.labels), self.miscalibrated
        if self.state in (None, "unclear"):
            return "" if self.state is None else f"{n} examples are too few for a verdict"
        if not worst:
            return f"no miscalibration detected in {k:,} labels with {n:,} examples"
        named = []
        for each in worst[:NAMED]:
            slope = each.metrics["calibration_slope"].value
            known = f", slope {slope:.2f}" if math.isfinite(slope) else ""
            name = class_label(each.name, "label")
            named.append(f"{name} ({100 * each.error:+.1f} points{known})")
        more = f" and {len(worst) - NAMED} more" if len(worst) > NAMED else ""
        verb = "is" if len(worst) == 1 else "are"
        return f"{len(worst)} of {k:,} labels {verb} miscalibrated: {', '.join(named)}{more}"

    @property
    def remarks(self) -> list[str]:
        """What a reader should know about single labels, metrics and intervals."""
        excluded = [
            f"{which} {name}: the interval is corrected for the bias of the value, and excludes it"
            for which, found in (("macro", self.summary.macro), ("micro", self.summary.micro))
            for name, bar in found.items()
            if bar.value < bar.low or bar.value > bar.high
        ]
        weighted = self.multi.weights is not None or self.multi.groups is not None
        untested = ["labels are not tested: tests need independent, unweighted examples"]
        return [*self.summary.notes, *excluded, *(untested if weighted and self.resamples else [])]

    @property
    def table(self) -> Table:
        """A row for each label, the worst first; see `labels`."""
        heads = ["label", "known", "base rate", "mean probability", "difference"]
        columns = [Column(head, number=at > 0) for at, head in enumerate(heads)]
        columns += [
            Column(each.label, number=True, higher_is_better=each.best == "higher")
            for each in map(METRICS.__getitem__, SHOWN)
        ]
        columns.append(Column("p-value (Holm)", number=True))
        rows = []
        for each in self.labels:
            numbers = (each.base_rate, each.mean_probability, each.error)
            cells = [Cell(each.name), Cell(f"{each.known:,}", value=str(each.known))]
            cells += [
                Cell("-") if math.isnan(value) else Cell(f"{value:{sign}.4f}", value=f"{value:.9g}")
                for value, sign in zip(numbers, ("", "", "+"), strict=True)
            ]
            cells += [_cell(each.metrics[name]) for name in SHOWN]
            cells.append(Cell(p_text(each.corrected), value=f"{each.corrected:.9g}"))
            rows.append(tuple(cells))
        return Table(tuple(columns), tuple(rows), "Labels")

    def averages_table(self) -> Table:
        """Each metric as the mean over labels (macro) and of all entries together (micro)."""
        ends = [f"{100 * self.level:g}% interval"] if self.resamples else []
        heads = ["metric", "macro", *ends, "micro", *ends, "meaning"]
        rows = []
        for name in self.summary.macro:
            row = [name]
            for bar in (self.summary.macro[name], self.summary.micro[name]):
                row.append("-" if math.isnan(bar.value) else f"{bar.value:.4f}")
                row += [range_text(bar.low, bar.high)] if self.resamples else []
            rows.append([*row, METRICS[name].meaning])
        return Table.of(heads, rows, numbers=heads[1:-1], caption="All metrics")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `calibrant audit --multi-label --json` prints them."""
        record: dict[str, Any] = {"source": self.name, "bins": self.bins, "level": self.level}
        record |= {"interval_type": self.interval_type, "resamples": self.resamples}
        record |= {"seed": self.seed, **asdict(self.summary)}
        record["labels"] = [asdict(each) for each in self.labels]
        return record | {"verdict": self.verdict, "state": self.state, "remarks": self.remarks}

    def to_html(self) -> str:
        """A self-contained page; the same predictions give the same bytes."""
        from calibrant.report.label_page import label_page

        return label_page(self)

    def to_pandas(self) -> "pandas.DataFrame":
        """A row for each label, then macro and micro; a column for each metric."""
        frame: pandas.DataFrame = self.summary.to_pandas()
        return frame

    def _repr_html_(self) -> str:
        from calibrant.report.label_page import label_fragment

        return label_fragment(self)


def audit_labels(
    multi: MultiLabel,
    *,
    name: str,
    bins: int,
    level: float,
    interval_type: IntervalType,
    resamples: int,
    seed: int,
    progress: Callable[[], None] | None,
) -> LabelAudit:
    """Measure all labels, macro and micro; options as in `audit`."""
    summary = label_summary(
        multi,
        bins=bins,
        level=level,
        resamples=resamples,
        seed=seed,
        interval_type=interval_type,
        progress=progress,
    )
    return LabelAudit(multi, name, bins, level, interval_type, resamples, seed, summary)


def _cell(bar: Interval) -> Cell:
    if not math.isfinite(bar.value):
        return Cell("-" if math.isnan(bar.value) else f"{bar.value:g}")
    return Cell(value_with_interval(bar).split(" [")[0], ends_text(bar), value=f"{bar.value:.9g}")
