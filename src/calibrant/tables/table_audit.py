"""What the audit of a table found: metrics, verdict, slices, windows of time; tables and page."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from calibrant.metrics import METRICS, Interval, TestResult
from calibrant.metrics.verdict import ALPHA
from calibrant.report.rendering import SavedPage
from calibrant.table_values import Cell, Column, Table, count_text, p_text, range_text
from calibrant.tables.columns import Columns
from calibrant.tables.examples import invalid_text
from calibrant.tables.measures import summary_names
from calibrant.tables.search import FoundSlice
from calibrant.tables.series import Series
from calibrant.tables.slices import Slices
from calibrant.tables.table_sums import TableSums


@dataclass(frozen=True)
class TableAudit(SavedPage):
    """What `audit` found in a table; `to_dict` gives plain values, `save` writes a page.

    Attributes:
        name: name of the table.
        columns: the columns that were read.
        sums: the sums of all valid rows.
        metrics: name to value and interval; NaN where an interval cannot be had.
        test: test that the predictions are calibrated.
        level: confidence level of the intervals.
        intervals: how the intervals were made, in words.
        invalid: number of rows left out, by reason.
        slices: the slices, if asked for.
        series: the windows of time, if asked for.
        worst: the worst slice that a search found, if asked for.
        notes: what the reader should know of the source, such as files left out.
    """

    name: str
    columns: Columns
    sums: TableSums
    metrics: dict[str, Interval]
    test: TestResult
    level: float
    intervals: str
    invalid: Mapping[str, int] = field(default_factory=dict)
    slices: Slices | None = None
    series: Series | None = None
    worst: FoundSlice | None = None
    notes: tuple[str, ...] = ()

    @property
    def gate(self) -> str:
        """Name of the ECE that a limit is compared with: of two classes, that of P(positive)."""
        return "binary_ece" if self.sums.classes == 2 else "ece"

    @property
    def facts(self) -> str:
        """Size of the table, and rows left out."""
        known = "top label only" if self.sums.classes == 1 else f"{self.sums.classes:,} classes"
        left = sum(self.invalid.values())
        dropped = f", {left:,} invalid rows left out ({invalid_text(self.invalid)})" if left else ""
        return f"{self.sums.rows:,} rows, {known}{dropped}"

    @property
    def calibrated(self) -> bool:
        """Whether nothing speaks against calibration: not all rows, no slice, no window."""
        excess = self.metrics[summary_names(self.sums.classes)["gap"]]
        off = excess.low > 0 or excess.high < 0 or self.test.p_value < ALPHA
        found = self.slices is not None and bool(self.slices.miscalibrated)
        found |= self.series is not None and self.series.alarm is not None
        found |= self.worst is not None and self.worst.p_value < ALPHA
        return not (off or found)

    @property
    def verdict(self) -> str:
        """One sentence: is confidence too high or too low, where, and since when?"""
        what = "P(positive)" if self.sums.classes == 2 else "confidence"
        excess = self.metrics[summary_names(self.sums.classes)["gap"]]
        points = f"{100 * abs(excess.value):.1f} points"
        if excess.low > 0:
            said = f"{what} is {points} too high on average"
        elif excess.high < 0:
            said = f"{what} is {points} too low on average"
        elif math.isnan(excess.low) and self.test.p_value < ALPHA:
            mean = "base rate" if self.sums.classes == 2 else "accuracy"
            side = "above" if excess.value > 0 else "below"
            said = f"miscalibrated: mean {what} is {points} {side} {mean}"
        elif self.test.p_value < ALPHA:
            said = f"calibrated on average, but not at every level of {what}"
        else:
            said = f"no miscalibration detected with {self.sums.rows:,} rows"
        if self.slices is not None and self.slices.miscalibrated:
            off, total = self.slices.miscalibrated, len(self.slices.slices)
            said += f"; {len(off):,} of {total:,} slices miscalibrated, first {off[0].name}"
        if self.worst is not None and self.worst.p_value < ALPHA:
            said += f"; worst slice found: {self.worst.name}"
        if self.series is not None and self.series.alarm is not None:
            said += f"; miscalibration in time detected in the window {self.series.alarm.name}"
        return said

    def metrics_table(self) -> Table:
        """Each metric with its value, interval and meaning."""
        heads = ["metric", "value", f"{100 * self.level:g}% interval", "meaning"]
        rows = [
            [name, f"{each.value:.4f}", range_text(each.low, each.high), METRICS[name].meaning]
            for name, each in self.metrics.items()
        ]
        return Table.of(heads, rows, numbers=heads[1:3], caption="All metrics")

    def slices_table(self, most: int | None = None) -> Table:
        """Slices ranked by evidence, with p-values corrected for their number."""
        heads = ["slice", "rows", "debiased ECE", "corrected p", "ECE", "mean gap", "p-value"]
        columns = tuple(Column(head, number=head != "slice") for head in heads)
        rows = tuple(
            (
                Cell(each.name),
                _number(each.sums.rows, count_text(each.sums.rows)),
                _number(each.debiased.value, f"{each.debiased.value:.4f}", each.debiased),
                _number(each.corrected, p_text(each.corrected)),
                _number(each.ece.value, f"{each.ece.value:.4f}", each.ece),
                _number(each.gap.value, f"{each.gap.value:+.4f}", each.gap),
                _number(each.p_value, p_text(each.p_value)),
            )
            for each in (self.slices.slices if self.slices else ())[:most]
        )
        return Table(columns, rows, "Slices")

    def series_table(self, last: int = 0) -> Table:
        """Each window with its rows, ECE, mean gap and e-value; `last` selects the last ones."""
        heads = ["window", "rows", "ECE", "e-value", "mean gap", "debiased ECE"]
        names = summary_names(self.sums.classes)
        rows = []
        for at, each in enumerate(self.series.windows if self.series else ()):
            tested = None if self.series is None else self.series.drift
            ece, debiased, gap = (each.metrics[name] for name in names.values())
            evidence = "-" if tested is None else f"{tested.e_values[at]:.3g}"
            texts = [f"{f.value:.4f} {range_text(f.low, f.high)}" for f in (ece, debiased)]
            size, excess = count_text(each.sums.rows), f"{gap.value:+.4f}"
            rows.append([each.name, size, texts[0], evidence, excess, texts[1]])
        return Table.of(heads, rows[-last:], numbers=heads[1:], caption="Windows of time")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `calibrant audit --json` prints them."""
        record: dict[str, Any] = {
            "source": self.name,
            "rows": self.sums.rows,
            "classes": self.sums.classes,
            "invalid": dict(self.invalid),
            "bins": self.sums.bins,
            "level": self.level,
            "columns": asdict(self.columns),
            "metrics": {name: asdict(each) for name, each in self.metrics.items()},
            "intervals": self.intervals,
            "tests": {"calibration": asdict(self.test)},
            "verdict": self.verdict,
            "notes": list(self.notes),
        }
        if self.slices is not None:
            record["slices"] = {
                "depth": self.slices.depth,
                "least": self.slices.least,
                "too_small": self.slices.too_small,
                "correction": self.slices.correction,
                "useful_rows": self.slices.useful,
                "found": [
                    {
                        "where": dict(each.where),
                        "rows": each.sums.rows,
                        "ece": asdict(each.ece),
                        "debiased_ece": asdict(each.debiased),
                        "mean_gap": asdict(each.gap),
                        "p_value": each.p_value,
                        "corrected": each.corrected,
                    }
                    for each in self.slices.slices
                ],
            }
        if self.worst is not None:
            record["worst_slice"] = self.worst.to_dict()
        if self.series is not None:
            tested = self.series.drift
            record["series"] = {
                "every": self.series.every,
                "first_alarm": None if self.series.alarm is None else str(self.series.alarm.start),
                "windows": [
                    {
                        "start": each.start.isoformat(),
                        "rows": each.sums.rows,
                        "metrics": {name: asdict(found) for name, found in each.metrics.items()},
                        "log_e_value": None if tested is None else tested.log_e_values[at],
                    }
                    for at, each in enumerate(self.series.windows)
                ],
            }
        return record

    def to_html(self) -> str:
        """A self-contained page."""
        from calibrant.tables.page import table_page

        return table_page(self)


def _number(value: float, text: str, interval: Interval | None = None) -> Cell:
    ends = "" if interval is None else range_text(interval.low, interval.high)
    return Cell(text, ends, value=f"{value!r}")
