"""Calibration in time: metrics of each window, and an anytime-valid test of drift."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from calibrant.metrics import Interval, drift_test
from calibrant.metrics.sequential import DriftTest
from calibrant.setting_errors import did_you_mean
from calibrant.tables.clusters import Clusters
from calibrant.tables.measures import measured
from calibrant.tables.table_sums import TableSums

if TYPE_CHECKING:
    import ibis

SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}
OFFSET = r"(Z|[+-][0-9][0-9]:?[0-9][0-9])$"


@dataclass(frozen=True)
class Window:
    """One window of time: its start in UTC, sums and metrics."""

    start: datetime
    sums: TableSums
    metrics: dict[str, Interval]

    @property
    def name(self) -> str:
        """The start, as text."""
        return time_text(self.start)


@dataclass(frozen=True)
class Series:
    """Windows in order of time, and the test that all of them are calibrated.

    Attributes:
        windows: the windows that have rows.
        every: their width.
        drift: the test; None with weights or clusters, for which no valid one is known.
    """

    windows: tuple[Window, ...]
    every: str
    drift: DriftTest | None

    @property
    def alarm(self) -> Window | None:
        """The first window at which the drift test alarms."""
        if self.drift is None or self.drift.first_alarm is None:
            return None
        return self.windows[self.drift.first_alarm]


def seconds_of(every: str) -> int:
    """Seconds of a width of windows.

    >>> seconds_of("6h")
    21600
    """
    found = re.fullmatch(r"([1-9][0-9]{0,3})([mhdw])", every)
    if found is None:
        raise ValueError(f"windows must be written as 15m, 1h, 1d or 1w, got {every!r}")
    return int(found[1]) * SECONDS[found[2]]


def window_start(number: int, every: str) -> datetime:
    """Start of a window, given its number since 1970."""
    return datetime.fromtimestamp(number * seconds_of(every), UTC)


def time_text(start: datetime) -> str:
    """A time without what is zero: a day, or a day and a minute."""
    return f"{start:%Y-%m-%d}" if start.hour == start.minute == 0 else f"{start:%Y-%m-%d %H:%M}"


def window_key(table: "ibis.Table", time: str, every: str) -> "ibis.Value":
    """Number of the window of each row: whole windows since 1970, UTC, so that runs agree."""
    seconds = seconds_of(every)
    if time not in table.columns:
        raise ValueError(f"no column {time!r} in the table; {did_you_mean(time, table.columns)}")
    column = table[time]
    if column.type().is_string():
        _check_time_zones(table, time)
        column = column.cast("timestamp('UTC')")
    elif column.type().is_date():
        column = column.cast("timestamp")
    if not column.type().is_timestamp():
        raise ValueError(f"column {time} must hold times, got {column.type()}")
    # Fractions of a second are an error in some engines.
    return column.truncate("s").epoch_seconds().cast("int64") // seconds


def _check_time_zones(table: "ibis.Table", time: str) -> None:
    """Refuse texts of which some have a time zone and some have none."""
    zoned = table[time].strip().re_search(OFFSET)
    row = table.aggregate(all=table[time].count(), zoned=zoned.cast("int32").sum()).to_pyarrow()
    total, with_zone = (row[name][0].as_py() or 0 for name in ("all", "zoned"))
    if 0 < with_zone < total:
        raise ValueError(
            f"column {time} mixes times with and without a time zone ({int(with_zone):,} of "
            f"{int(total):,} have one): write all of them with one, such as 2026-01-31T00:00:00Z"
        )


def series_of(
    sums: Mapping[int, TableSums],
    *,
    every: str,
    level: float = 0.95,
    draws: int = 500,
    seed: int = 0,
    clusters: Mapping[int, Clusters] | None = None,
) -> Series:
    """Measure each window, given its number since 1970 and its sums; test all for drift.

    The drift test is an e-process: the probability that it ever alarms is at most 5 % if the
    predictions are calibrated, however often it is looked at.
    """
    own = clusters or {}
    windows = tuple(
        Window(
            window_start(number, every),
            sums[number],
            measured(sums[number], level=level, draws=draws, seed=seed, clusters=own.get(number)),
        )
        for number in sorted(sums)
    )
    valid = clusters is None and not any(each.sums.weighted for each in windows)
    tested = drift_test([each.sums.part(each.sums.focus) for each in windows]) if valid else None
    return Series(windows, every, tested)
