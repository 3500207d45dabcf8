"""Calibration in time: metrics of each window, and an anytime-valid test of drift."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from calibrant.metrics import Interval, drift_test
from calibrant.metrics.sequential import DriftTest
from calibrant.tables.columns import Columns
from calibrant.tables.measures import measured
from calibrant.tables.scan import scan
from calibrant.tables.table_sums import TableSums

if TYPE_CHECKING:
    import ibis

UNITS = {"m": "minute", "h": "hour", "d": "day", "w": "week"}


@dataclass(frozen=True)
class Window:
    """One window of time: its start, sums and metrics."""

    start: datetime
    sums: TableSums
    metrics: dict[str, Interval]


@dataclass(frozen=True)
class Series:
    """Windows in order of time, and the test that all of them are calibrated."""

    windows: tuple[Window, ...]
    every: str
    drift: DriftTest | None

    @property
    def alarm(self) -> Window | None:
        """The first window at which the drift test alarms."""
        if self.drift is None or self.drift.first_alarm is None:
            return None
        return self.windows[self.drift.first_alarm]


def check_every(every: str) -> tuple[int, str]:
    """Number and unit of a width of windows.

    >>> check_every("6h")
    (6, 'h')
    """
    found = re.fullmatch(r"([1-9][0-9]{0,3})([mhdw])", every)
    if found is None:
        raise ValueError(f"windows are written 15m, 1h, 1d or 1w, got {every!r}")
    return int(found[1]), found[2]


def audit_series(
    table: "ibis.Table",
    columns: Columns,
    time: str,
    *,
    every: str = "1d",
    bins: int = 15,
    level: float = 0.95,
    seed: int = 0,
) -> Series:
    """Measure each window of time, and test calibration over all of them, in one scan.

    The drift test is an e-process: the probability that it ever alarms is at most 5 % if the
    predictions are calibrated, however often it is looked at. It needs rows of equal weight.
    """
    number, unit = check_every(every)
    if time not in table.columns:
        raise ValueError(f"no column {time!r} in the table")
    column = table[time]
    if column.type().is_string() or column.type().is_date():
        column = column.cast("timestamp")
    if not column.type().is_timestamp():
        raise ValueError(f"column {time} must hold times, got {column.type()}")
    table = table.mutate(**{time: column}).filter(column.notnull())
    seconds = number * {"m": 60, "h": 3600, "d": 86400, "w": 604800}[unit]
    # Whole windows since 1970, so that windows of different runs are the same.
    start = (table[time].epoch_seconds().cast("float64") / float(seconds)).floor().cast("int64")
    found = scan(table, columns, bins=bins, by={"window": start}, grid=False)
    windows = tuple(
        Window(
            datetime.fromtimestamp(int(key[0]) * seconds, UTC),
            sums,
            measured(sums, level=level, draws=500, seed=seed),
        )
        for key, sums in sorted(found.items())
        if sums.rows
    )
    weighted = columns.weight is not None
    tested = None if weighted else drift_test([each.sums.part(each.sums.focus) for each in windows])
    return Series(windows, every, tested)
