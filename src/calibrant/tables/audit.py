"""The audit of a table: metrics, tests, slices and windows of time from sums of its engine."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from calibrant.metrics import METRICS, Interval, TestResult
from calibrant.report.rendering import SavedPage
from calibrant.table_values import Cell, Column, Table, count_text, p_text, range_text
from calibrant.tables.columns import Columns, find_columns
from calibrant.tables.measures import calibration_test, measured
from calibrant.tables.scan import scan
from calibrant.tables.series import Series, audit_series
from calibrant.tables.slices import LEAST, Correction, Slices, audit_slices
from calibrant.tables.table_sums import REASONS, TableSums

if TYPE_CHECKING:
    import ibis

ALPHA = 0.05


@dataclass(frozen=True)
class TableAudit(SavedPage):
    """What `audit` found in a table; `to_dict` gives plain values, `save` writes a page.

    Attributes:
        name: name of the table.
        columns: the columns that were read.
        sums: the sums of all valid rows.
        metrics: name to value and interval; the ends of adaptive and classwise ECE are NaN.
        test: chi-squared test that the predictions are calibrated.
        level: confidence level of the intervals.
        slices: the slices, if asked for.
        series: the windows of time, if asked for.
    """

    name: str
    columns: Columns
    sums: TableSums
    metrics: dict[str, Interval]
    test: TestResult
    level: float
    slices: Slices | None = None
    series: Series | None = None

    @property
    def gate(self) -> str:
        """Name of the ECE that a limit is compared with: of two classes, that of P(positive)."""
        return "binary_ece" if self.sums.classes == 2 else "ece"

    @property
    def facts(self) -> str:
        """Size of the table, and rows left out."""
        known = "top label only" if self.sums.classes == 1 else f"{self.sums.classes:,} classes"
        left = sum(self.sums.invalid.values())
        dropped = f", {left:,} invalid rows left out ({invalid_text(self.sums)})" if left else ""
        return f"{self.sums.rows:,} rows, {known}{dropped}"

    @property
    def verdict(self) -> str:
        """One sentence: is confidence too high or too low, where, and since when?"""
        two = self.sums.classes == 2
        excess = self.metrics["calibration_in_the_large" if two else "overconfidence"]
        what = "P(positive)" if two else "confidence"
        points = f"{100 * abs(excess.value):.1f} points"
        if excess.low > 0:
            said = f"{what} is {points} too high on average"
        elif excess.high < 0:
            said = f"{what} is {points} too low on average"
        elif self.test.p_value < ALPHA:
            said = f"calibrated on average, but not at every level of {what}"
        else:
            said = f"no miscalibration detected with {self.sums.rows:,} rows"
        off = [each for each in self.slices.slices if each.corrected < ALPHA] if self.slices else []
        if off and self.slices is not None:
            total = len(self.slices.slices)
            said += f"; {len(off)} of {total} slices are miscalibrated, first {off[0].name}"
        alarm = None if self.series is None else self.series.alarm
        if alarm is not None:
            said += f"; drift detected in the window of {alarm.start:%Y-%m-%d %H:%M}"
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
        heads = ["slice", "rows", "ECE", "debiased ECE", "mean gap", "p-value", "corrected"]
        columns = tuple(Column(head, number=head != "slice") for head in heads)
        rows = tuple(
            (
                Cell(each.name),
                _number(each.sums.rows, count_text(each.sums.rows)),
                _number(each.ece.value, f"{each.ece.value:.4f}", each.ece),
                _number(each.debiased.value, f"{each.debiased.value:.4f}", each.debiased),
                _number(each.excess.value, f"{each.excess.value:+.4f}", each.excess),
                _number(each.p_value, p_text(each.p_value)),
                _number(each.corrected, p_text(each.corrected)),
            )
            for each in (self.slices.slices if self.slices else ())[:most]
        )
        return Table(columns, rows, "Slices")

    def series_table(self) -> Table:
        """Each window with its rows, ECE, mean gap and e-value."""
        heads = ["window", "rows", "ECE", "debiased ECE", "mean gap", "e-value"]
        rows = []
        if self.series is not None:
            tested = self.series.drift
            two = self.sums.classes == 2
            names = (
                ("binary_ece", "debiased_binary_ece", "calibration_in_the_large")
                if two
                else ("ece", "debiased_ece", "overconfidence")
            )
            for at, each in enumerate(self.series.windows):
                found = [each.metrics[name] for name in names]
                evidence = "-" if tested is None else f"{tested.e_values[at]:.3g}"
                rows.append(
                    [
                        f"{each.start:%Y-%m-%d %H:%M}",
                        count_text(each.sums.rows),
                        *(f"{f.value:.4f} [{f.low:.4f}, {f.high:.4f}]" for f in found[:2]),
                        f"{found[2].value:+.4f}",
                        evidence,
                    ]
                )
        return Table.of(heads, rows, numbers=heads[1:], caption="Windows of time")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `calibrant audit --json` prints them."""
        record: dict[str, Any] = {
            "source": self.name,
            "rows": self.sums.rows,
            "classes": self.sums.classes,
            "invalid": dict(self.sums.invalid),
            "bins": self.sums.bins,
            "level": self.level,
            "columns": asdict(self.columns),
            "metrics": {name: asdict(each) for name, each in self.metrics.items()},
            "tests": {"chi_squared": asdict(self.test)},
            "verdict": self.verdict,
        }
        if self.slices is not None:
            record["slices"] = {
                "depth": self.slices.depth,
                "least": self.slices.least,
                "too_small": self.slices.too_small,
                "correction": self.slices.correction,
                "found": [
                    {
                        "where": dict(each.where),
                        "rows": each.sums.rows,
                        "ece": asdict(each.ece),
                        "debiased_ece": asdict(each.debiased),
                        "mean_gap": asdict(each.excess),
                        "p_value": each.p_value,
                        "corrected": each.corrected,
                    }
                    for each in self.slices.slices
                ],
            }
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


def audit(
    table: "ibis.Table",
    *,
    name: str = "predictions",
    bins: int = 15,
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    drop_invalid: bool = False,
    by: Sequence[str] = (),
    depth: int = 1,
    least: int = LEAST,
    correction: Correction = "holm",
    time: str | None = None,
    every: str = "1d",
    **columns: Any,
) -> TableAudit:
    """Audit a table of predictions in the engine that holds it; only sums leave the engine.

    Args:
        table: an Ibis table: DuckDB, Polars, PostgreSQL, Spark, BigQuery, ...
        name: name of the table, the title of the page.
        bins: number of bins.
        level: confidence level of the intervals.
        draws: draws from the joint normal distribution of the sums, for intervals; 0 for none.
        seed: seed of the draws.
        drop_invalid: leave out rows with nulls, NaN, scores or labels out of range, and count them;
            otherwise they are refused.
        by: columns to slice by, with one more scan.
        depth: how many of them are combined.
        least: rows of the smallest slice that is tested.
        correction: of the p-values of slices, "holm" or "bh" (Benjamini-Hochberg).
        time: column of times for a series, with one more scan.
        every: width of its windows: 15m, 1h, 1d, 1w.
        columns: names of columns, see `find_columns`.
    """
    found = find_columns(table, **columns)
    sums = scan(table, found, bins=bins)[()]
    if sums.invalid and not drop_invalid:
        left = sum(sums.invalid.values())
        raise ValueError(
            f"{left:,} of {left + sums.rows:,} rows are invalid: {invalid_text(sums)}; repair "
            "them, or leave them out with drop_invalid=True (--drop-invalid)"
        )
    if not sums.rows:
        raise ValueError(f"{name} has no valid rows")
    slices = series = None
    options: dict[str, Any] = {"bins": bins, "level": level, "seed": seed}
    if by:
        slices = audit_slices(
            table, found, by, depth=depth, least=least, correction=correction, **options
        )
    if time is not None:
        series = audit_series(table, found, time, every=every, **options)
    metrics = measured(sums, level=level, draws=draws, seed=seed)
    return TableAudit(name, found, sums, metrics, calibration_test(sums), level, slices, series)


def invalid_text(sums: TableSums) -> str:
    """How many rows have which problem."""
    return ", ".join(f"{count:,} with {REASONS[name]}" for name, count in sums.invalid.items())


def _number(value: float, text: str, interval: Interval | None = None) -> Cell:
    ends = "" if interval is None else f"[{interval.low:.4f}, {interval.high:.4f}]"
    return Cell(text, ends, value=f"{value!r}")
