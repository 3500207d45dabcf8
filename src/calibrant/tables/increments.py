"""Rows of a file or of a growing table, summed by window: those with labels and those without."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.advice import InputError
from calibrant.extras import need
from calibrant.metrics.bins import BinSums
from calibrant.setting_errors import did_you_mean
from calibrant.tables.columns import Columns, find_columns
from calibrant.tables.examples import invalid_text
from calibrant.tables.scan import InvalidRowsError, diagnose, scan, without_invalid
from calibrant.tables.series import OFFSET, window_key, window_start
from calibrant.tables.sources import open_table
from calibrant.tables.table_sums import TableSums
from calibrant.tables.watch_options import WatchOptions
from calibrant.tables.watch_state import WatchedWindow, WatchState

if TYPE_CHECKING:
    import ibis

FLAG = "calibrant_labelled"
# Windows that are named one by one in a query; more are named by the first and the last.
MOST_NAMED = 100
Schema = dict[str, tuple[str, str]]


@dataclass(frozen=True)
class Increment:
    """Rows of one window: sums of those with labels, counts and confidences of the others."""

    labelled: TableSums | None = None
    unlabelled: BinSums | None = None

    @property
    def labelled_rows(self) -> int:
        """Number of rows with a label."""
        return 0 if self.labelled is None else self.labelled.rows

    @property
    def rows(self) -> int:
        """Number of rows, labelled or not."""
        without = 0 if self.unlabelled is None else int(self.unlabelled.count.sum())
        return without + self.labelled_rows


@contextmanager
def opened(source: str, time: str | None) -> Iterator["ibis.Table"]:
    """A table whose connection is closed at the end, so that others can write to a database."""
    ibis: Any = need("ibis", extra="tables", what="a table of predictions")
    table = open_table(source, text=[] if time is None else [time])
    try:
        yield table
    finally:
        ibis.get_backend(table).disconnect()


def watched_columns(table: "ibis.Table", options: WatchOptions) -> Columns:
    """Columns of the first rows; weights and groups are refused, for which no test is known."""
    found = find_columns(table, **options.columns)
    for name in filter(None, (found.weight, found.group)):
        raise ValueError(
            f"column {name}: no anytime-valid test is known of weighted or grouped rows; deliver "
            "predictions without this column"
        )
    return found


def dropping(problem: str) -> InputError:
    """The error of invalid rows, which may be left out."""
    advice = "repair them, or leave them out with"
    return InputError(problem, f"{advice} drop_invalid=True", f"{advice} --drop-invalid")


def read_rows(
    table: "ibis.Table",
    options: WatchOptions,
    state: WatchState,
    *,
    windows: list[int] | None = None,
) -> tuple[WatchState, dict[int, Increment], dict[str, int]]:
    """Sum rows as `read_increments` does; the state has the columns and the schema of the first."""
    columns = state.columns or watched_columns(table, options)
    schema = schema_of(table, columns, options.time)
    found, invalid = read_increments(
        table,
        columns,
        time=options.time,
        every=options.every,
        bins=options.bins,
        drop_invalid=options.drop_invalid,
        has_labels=check_schema(table, schema, state.schema, columns),
        windows=windows,
    )
    return replace(state, columns=columns, schema={**schema, **state.schema}), found, invalid


def add_increment(
    state: WatchState, number: int, name: str, new: Increment, *, late: bool, level: float
) -> WatchState:
    """The state after new rows of a window."""
    old = state.windows.get(number) or WatchedWindow(name)
    sums, unlabelled = old.sums, old.unlabelled
    if new.labelled is not None:
        sums = new.labelled if sums is None else sums + new.labelled
    if new.unlabelled is not None:
        unlabelled = new.unlabelled if unlabelled is None else unlabelled + new.unlabelled
    window = replace(
        old, sums=sums, unlabelled=unlabelled, late=old.late + (new.rows if late else 0)
    )
    increment = None if new.labelled is None else new.labelled.part(new.labelled.focus)
    return state.with_window(number, window, increment=increment, level=level)


def schema_of(table: "ibis.Table", columns: Columns, time: str | None) -> Schema:
    """Kind and type of each column that is used; the outcome is left out if the table lacks it."""
    found: Schema = {}
    for name in (*columns.scores, columns.outcome, *([] if time is None else [time])):
        if name not in table.columns:
            if name == columns.outcome:
                continue
            raise ValueError(
                f"no column {name!r} in the table; {did_you_mean(name, table.columns)}"
            )
        kind = table[name].type()
        text = str(kind)
        if kind.is_numeric() or kind.is_boolean():
            found[name] = ("number", text)
        elif kind.is_timestamp():
            zone = "without" if kind.timezone is None else "with"
            found[name] = (f"time {zone} a time zone", text)
        elif kind.is_string() and name == time:
            zoned = table[name].strip().re_search(OFFSET).any().to_pyarrow().as_py()
            text += f" {'with' if zoned else 'without'} a time zone"
            found[name] = (text, text)
        else:
            found[name] = (text, text)
    return found


def check_schema(
    table: "ibis.Table", now: Schema, before: Mapping[str, tuple[str, str]], columns: Columns
) -> bool:
    """Refuse a column of another kind than before; returns whether the table has labels."""
    for name, (kind, text) in now.items():
        if kind == before.get(name, (kind, text))[0]:
            continue
        # A column of nulls alone has any type.
        if name == columns.outcome and not table[name].count().to_pyarrow().as_py():
            return False
        raise ValueError(f"column {name} is {text}, but {before[name][1]} in the rows before")
    return columns.outcome in now


def read_increments(
    table: "ibis.Table",
    columns: Columns,
    *,
    time: str | None,
    every: str,
    bins: int,
    drop_invalid: bool,
    has_labels: bool = True,
    windows: list[int] | None = None,
) -> tuple[dict[int, Increment], dict[str, int]]:
    """Sum the rows by window in one scan, those with labels apart from those without.

    Args:
        table: the rows.
        columns: what the columns mean.
        time: column of times; without it all rows are of window 0.
        every: width of the windows.
        bins: number of bins.
        drop_invalid: leave out invalid rows, and count them; otherwise they are refused.
        has_labels: whether the column of outcomes can be read.
        windows: numbers of the windows to read; all if not given.

    Returns:
        Number of the window to its rows, and the number of rows left out by reason.
    """
    ibis: Any = need("ibis", extra="tables", what="a table of predictions")
    rows = _with_flag(ibis, table, columns, time, has_labels=has_labels)
    if windows is not None and time is not None:
        rows = _since(rows, time, every, min(windows))
        key = window_key(rows, time, every)
        named = len(windows) <= MOST_NAMED
        rows = rows.filter(key.isin(windows) if named else key.between(min(windows), max(windows)))
    invalid: dict[str, int] = {}
    try:
        sums = _scanned(rows, columns, time, every, bins)
    except InvalidRowsError:
        key = None if time is None else window_key(rows, time, every)
        invalid = diagnose(rows, columns, time=key)
        if not drop_invalid:
            total = rows.count().to_pyarrow().as_py()
            raise dropping(
                f"{sum(invalid.values()):,} of {total:,} rows are invalid: {invalid_text(invalid)}"
            ) from None
        sums = _scanned(without_invalid(rows, columns, time=key), columns, time, every, bins)
    found: dict[int, Increment] = {}
    for number in sorted({key[-1] if time is not None else 0 for key in sums}):
        own = {
            bool(key[0]): each for key, each in sums.items() if time is None or key[-1] == number
        }
        without = own[False].part(0) if False in own else None
        if without is not None:
            zero = np.zeros_like(without.count)
            without = BinSums(without.count, without.confidence, zero, without.edges)
        found[int(number)] = Increment(own.get(True), without)
    if windows is not None:
        found = {number: each for number, each in found.items() if number in windows}
    return found, invalid


def count_rows(
    table: "ibis.Table", columns: Columns, time: str, every: str, since: int | None
) -> tuple[dict[int, tuple[int, int]], int]:
    """Labelled and unlabelled rows of each window from `since` on, and rows without a time."""
    ibis: Any = need("ibis", extra="tables", what="a table of predictions")
    rows = _with_flag(ibis, table, columns, time, has_labels=True)
    null_times = int(rows.filter(rows[time].isnull()).count().to_pyarrow().as_py())
    rows = rows.filter(rows[time].notnull())
    if since is not None:
        rows = _since(rows, time, every, since)
    rows = rows.select(number=window_key(rows, time, every), flag=rows[FLAG])
    counted = rows.group_by("number").aggregate(n=rows.count(), k=rows["flag"].sum())
    found = {
        int(r["number"]): (int(r["k"]), int(r["n"] - r["k"]))
        for r in counted.to_pyarrow().to_pylist()
    }
    return {
        at: each for at, each in sorted(found.items()) if since is None or at >= since
    }, null_times


def new_rows(before: TableSums | None, now: TableSums | None) -> BinSums | None:
    """Sums of the rows that were added to a window; None if rows were changed or removed.

    Counts are exact. Sums of confidence may differ by rounding, which is clipped.
    """
    if now is None:
        return None
    own = now.part(now.focus)
    if before is None:
        return own
    old = before.part(before.focus)
    count, correct = own.count - old.count, np.rint(own.correct - old.correct)
    if (count < 0).any() or (correct < 0).any() or (correct > count).any():
        return None
    confidence = (own.confidence - old.confidence).clip(0, count)
    return BinSums(count, confidence, correct, own.edges)


def _with_flag(
    ibis: Any, table: "ibis.Table", columns: Columns, time: str | None, *, has_labels: bool
) -> "ibis.Table":
    """The columns that are used; unlabelled rows are flagged and get any valid outcome."""
    kept = [*columns.scores, *([] if time is None else [time])]
    any_outcome = 0 if columns.names is None else columns.names[-1]
    if not has_labels:
        flag = ibis.literal(0, type="int64")
        return table.select(*kept, **{columns.outcome: ibis.literal(any_outcome), FLAG: flag})
    outcome = table[columns.outcome]
    known = outcome.notnull()
    if outcome.type().is_floating():
        known = known & ~outcome.isnan()
    given = ibis.literal(any_outcome).cast(outcome.type())
    if outcome.type().is_boolean():
        given = ibis.literal(False)
    # PostgreSQL casts no boolean to bigint.
    flag = known.ifelse(ibis.literal(1, type="int64"), ibis.literal(0, type="int64"))
    return table.select(*kept, **{columns.outcome: known.ifelse(outcome, given), FLAG: flag})


def _since(rows: "ibis.Table", time: str, every: str, number: int) -> "ibis.Table":
    """Rows from about the start of a window on, by the column itself, which engines can skip by."""
    ibis: Any = need("ibis", extra="tables", what="a table of predictions")
    kind = rows[time].type()
    if not kind.is_timestamp():
        return rows
    # A day earlier, whatever the time zone of the session is.
    start = window_start(number, every) - timedelta(days=1)
    return rows.filter(rows[time] >= ibis.timestamp(start.replace(tzinfo=None)).cast(kind))


def _scanned(
    rows: "ibis.Table", columns: Columns, time: str | None, every: str, bins: int
) -> dict[tuple[Any, ...], TableSums]:
    keys = {"labelled": rows[FLAG]}
    if time is not None:
        keys["window"] = window_key(rows, time, every)
    sums = scan(rows, columns, bins=bins, keys=keys, fine=False)
    if any(None in key for key in sums):
        raise InvalidRowsError("rows without a time")
    return {key: each for key, each in sums.items() if each.rows}
