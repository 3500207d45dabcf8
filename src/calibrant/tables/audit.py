"""The audit of a table: metrics, tests, slices and windows of time from sums of its engine."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from calibrant.advice import InputError
from calibrant.extras import need
from calibrant.metrics import METRICS, Interval, TestResult
from calibrant.metrics.verdict import ALPHA
from calibrant.report.rendering import SavedPage
from calibrant.table_values import Cell, Column, Table, count_text, p_text, range_text
from calibrant.tables.bootstrap import bootstrap as resample
from calibrant.tables.clusters import Clusters
from calibrant.tables.columns import Columns, find_columns
from calibrant.tables.examples import REASONS
from calibrant.tables.measures import bootstrapped, calibration_test, measured, summary_names
from calibrant.tables.scan import InvalidRowsError, Key, diagnose, scan, without_invalid
from calibrant.tables.search import FoundSlice, find_slices
from calibrant.tables.series import Series, series_of, window_key
from calibrant.tables.slices import LEAST, Correction, Slices, audit_slices
from calibrant.tables.sources import (
    Engine,
    checked_files,
    engine_errors,
    hide_password,
    open_source,
)
from calibrant.tables.table_sums import TableSums

if TYPE_CHECKING:
    import ibis


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
    search: Sequence[str] = (),
    time: str | None = None,
    every: str = "1d",
    bootstrap: int = 0,
    key: str | None = None,
    notes: Sequence[str] = (),
    **columns: Any,
) -> TableAudit:
    """Audit a table of predictions in the engine that holds it; only sums leave the engine.

    Metrics and windows of time take one scan, all slices together another.

    Args:
        table: an Ibis table: DuckDB, Polars, PostgreSQL, Spark, BigQuery, ...
        name: name of the table, the title of the page.
        bins: number of bins.
        level: confidence level of the intervals.
        draws: draws from the joint normal distribution of the sums, for intervals; 0 for none.
        seed: seed of the draws.
        drop_invalid: leave out rows with nulls, NaN, scores or labels out of range, and count them;
            otherwise they are refused.
        by: columns to slice by.
        depth: how many of them are combined.
        least: rows of the smallest slice that is tested.
        correction: of the p-values of slices, "holm" or "bh" (Benjamini-Hochberg).
        search: columns in which to search for the worst slice; see `find_slices`.
        time: column of times for a series.
        every: width of its windows: 15m, 1h, 1d, 1w.
        bootstrap: resamples of a Poisson bootstrap in the engine; 0 for intervals from sums.
        key: column of row keys for the bootstrap and the halves of a search; rows with the same key
            stay together. Default: the group column.
        notes: remarks for the page.
        columns: names of columns, see `find_columns`.
    """
    table = _held(table)
    found = find_columns(table, **columns)
    windows = {} if time is None else {"window": window_key(table, time, every)}
    invalid: dict[str, int] = {}
    try:
        sums = _scanned(table, found, windows, bins=bins)
    except InvalidRowsError:
        invalid = diagnose(table, found, time=windows.get("window"))
        if not drop_invalid:
            raise _refused(table, name, invalid) from None
        table = without_invalid(table, found, time=windows.get("window"))
        windows = {} if time is None else {"window": window_key(table, time, every)}
        sums = _scanned(table, found, windows, bins=bins)
    if not sums:
        left = f": {invalid_text(invalid)}" if invalid else ""
        raise ValueError(f"{name} has no valid rows{left}")
    key = key or found.group
    total = _total(list(sums.values()))
    if not total.moments(0)["w"].sum() > 0:
        raise ValueError(f"{name}: all weights of column {found.weight} are 0")
    clusters: dict[Key, Clusters] = {}
    if found.group is not None:
        clusters = Clusters.scan(table, found, bins=bins)
        if windows:
            clusters |= Clusters.scan(table, found, bins=bins, keys=windows)
    own = clusters.get(())
    said = "normal approximation from the sums of the bins"
    said += f", {own.number:,} clusters" if own is not None else ""
    options: dict[str, Any] = {"level": level, "seed": seed}
    metrics = measured(total, draws=draws, clusters=own, **options)
    if bootstrap:
        if key is None:
            raise InputError("a bootstrap needs a column of row keys", "give key", "give --key")
        replicates = resample(table, found, key, replicates=bootstrap, bins=bins, seed=seed)
        metrics = bootstrapped(total, replicates, level=level)
        said = f"Poisson bootstrap of {bootstrap:,} resamples, by {key}"
    slices = series = worst = None
    if by:
        slices = audit_slices(
            table, found, by, bins=bins, depth=depth, least=least, correction=correction, **options
        )
    if search:
        worst = find_slices(table, found, search, key=key, bins=bins, least=least, **options)
    if windows:
        each = {int(window[0]): part for window, part in sums.items()}
        own_clusters = {int(k[0]): c for k, c in clusters.items() if k} if clusters else None
        series = series_of(each, every=every, clusters=own_clusters, **options)
    test = calibration_test(total, own)
    return TableAudit(
        name, found, total, metrics, test, level, said, invalid, slices, series, worst, tuple(notes)
    )


def audit_source(
    source: str | Sequence[str],
    *,
    engine: Engine = "duckdb",
    sql: str | None = None,
    keep_going: bool = False,
    **options: Any,
) -> TableAudit:
    """Open a table as `open_table` does, and audit it; `options` are those of `audit`.

    An error of the engine is one line. A file that turns out to be damaged is named, or left out
    and counted with `keep_going`.
    """
    # Engines would read times of which some have a time zone as if all had.
    reading: dict[str, Any] = {"engine": engine, "sql": sql}
    reading["text"] = [options["time"]] if options.get("time") else []
    opened = open_source(source, keep_going=keep_going, **reading)
    name = options.pop("name", hide_password(source if isinstance(source, str) else source[0]))
    with engine_errors(name):
        try:
            return audit(opened.table, name=name, notes=opened.notes, **options)
        except (ValueError, TypeError, ImportError):
            raise
        except Exception:
            if not opened.files:
                raise
            # Footers were fine: decode every page to find the file that is not.
            good, skipped = checked_files(opened.files, keep_going=keep_going, deep=True)
            if not skipped:
                raise
            again = open_source([str(path) for path in good], **reading)
            again = replace(again, skipped=(*opened.skipped, *skipped))
            return audit(again.table, name=name, notes=again.notes, **options)


def _held(table: "ibis.Table") -> "ibis.Table":
    """The table; rows in the memory of this process go to DuckDB."""
    ibis: Any = need("ibis", extra="tables", what="a table of predictions")
    if table._find_backends()[0]:
        return table
    return ibis.duckdb.connect().create_table("predictions", table)


def _scanned(
    table: "ibis.Table", columns: Columns, windows: Mapping[str, Any], *, bins: int
) -> dict[Key, TableSums]:
    sums = scan(table, columns, bins=bins, keys=windows)
    if (None,) in sums:
        raise InvalidRowsError("rows without a time")
    return {key: each for key, each in sums.items() if each.rows}


def _total(sums: Sequence[TableSums]) -> TableSums:
    """All together, by halves, so that few numbers are added repeatedly."""
    while len(sums) > 1:
        sums = [sum(sums[at + 1 : at + 2], sums[at]) for at in range(0, len(sums), 2)]
    return sums[0]


def _refused(table: "ibis.Table", name: str, invalid: Mapping[str, int]) -> InputError:
    left, rows = sum(invalid.values()), int(table.count().to_pyarrow().as_py())
    return InputError(
        f"{name}: {left:,} of {rows:,} rows are invalid: {invalid_text(invalid)}",
        "repair them, or leave them out with drop_invalid=True",
        "repair them, or leave them out with --drop-invalid",
    )


def invalid_text(invalid: Mapping[str, int]) -> str:
    """How many rows have which problem."""
    return ", ".join(f"{count:,} with {REASONS[reason]}" for reason, count in invalid.items())


def _number(value: float, text: str, interval: Interval | None = None) -> Cell:
    ends = "" if interval is None else range_text(interval.low, interval.high)
    return Cell(text, ends, value=f"{value!r}")
