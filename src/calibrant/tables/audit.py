"""Audit a table in the engine that holds it, or a source that is opened first."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from calibrant.advice import InputError
from calibrant.extras import need
from calibrant.tables.bootstrap import bootstrap as resample
from calibrant.tables.clusters import Clusters
from calibrant.tables.columns import Columns, find_columns
from calibrant.tables.examples import invalid_text
from calibrant.tables.measures import bootstrapped, calibration_test, measured
from calibrant.tables.scan import InvalidRowsError, Key, diagnose, scan, without_invalid
from calibrant.tables.search import find_slices
from calibrant.tables.series import series_of, window_key
from calibrant.tables.slices import LEAST, Correction, audit_slices
from calibrant.tables.sources import (
    Engine,
    checked_files,
    engine_errors,
    hide_password,
    open_source,
)
from calibrant.tables.table_audit import TableAudit
from calibrant.tables.table_sums import TableSums

if TYPE_CHECKING:
    import ibis


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
    said = said if draws else "none"
    options: dict[str, Any] = {"level": level, "seed": seed}
    # A search needs intervals; slices and windows have fewer draws by default.
    parts = options if draws else options | {"draws": 0}
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
            table, found, by, bins=bins, depth=depth, least=least, correction=correction, **parts
        )
    if search:
        worst = find_slices(table, found, search, key=key, bins=bins, least=least, **options)
    if windows:
        each = {int(window[0]): part for window, part in sums.items()}
        own_clusters = {int(k[0]): c for k, c in clusters.items() if k} if clusters else None
        series = series_of(each, every=every, clusters=own_clusters, **parts)
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
