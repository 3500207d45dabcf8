"""State of `calibrant watch`: one immutable value, saved as one file in one atomic write."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from calibrant.files.atomic import replacing
from calibrant.files.checks import check_file
from calibrant.metrics import CalibrationEProcess, Interval
from calibrant.metrics.bins import BinSums, bin_edges
from calibrant.tables.columns import Columns
from calibrant.tables.measures import measured
from calibrant.tables.series import time_text, window_start
from calibrant.tables.table_sums import TableSums
from calibrant.tables.unlabelled import EstimatedAccuracy, estimate_accuracy, last_labelled

VERSION = 1
STATE = "state.json"
Status = Literal["counted", "redelivered", "left_out"]


@dataclass(frozen=True)
class SeenFile:
    """A file of the folder, as it was when it was counted or left out.

    Attributes:
        size: its bytes.
        modified: its time of modification in nanoseconds.
        digest: SHA-256 of the content that was counted.
        status: what was done with it.
        rows: rows that were counted, labelled or not.
        note: why it was left out, or what else the reader should know.
    """

    size: int
    modified: int
    digest: str
    status: Status
    rows: int = 0
    note: str = ""


@dataclass(frozen=True, eq=False)
class WatchedWindow:
    """What is known of a window.

    Attributes:
        name: start of the window in UTC, or name of the file.
        sums: sums of its labelled rows; None if there are none.
        unlabelled: counts and confidences of its unlabelled rows, by bins of the top label.
        late: rows that were added after a newer window had been counted.
        seen: labelled and unlabelled rows that a table had when the window was scanned.
        metrics: metrics of the labelled rows.
        log_e_value: log of the e-value after it was counted.
    """

    name: str
    sums: TableSums | None = None
    unlabelled: BinSums | None = None
    late: int = 0
    seen: tuple[int, int] = (0, 0)
    metrics: Mapping[str, Interval] = field(default_factory=dict)
    log_e_value: float = 0.0

    @property
    def labelled_rows(self) -> int:
        """Number of labelled rows."""
        return 0 if self.sums is None else self.sums.rows

    @property
    def unlabelled_rows(self) -> int:
        """Number of rows without a label."""
        return 0 if self.unlabelled is None else int(self.unlabelled.count.sum())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        held = self.unlabelled
        return {
            **{name: getattr(self, name) for name in ("name", "late", "log_e_value")},
            "seen": list(self.seen),
            "sums": None if self.sums is None else self.sums.to_dict(),
            "unlabelled": held and [held.count.tolist(), held.confidence.tolist()],
            "metrics": {k: [v.value, v.low, v.high, v.level] for k, v in self.metrics.items()},
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "WatchedWindow":
        """Load what `to_dict` saved."""
        held, sums = record["unlabelled"], record["sums"]
        labelled, unlabelled = record["seen"]
        return cls(
            str(record["name"]),
            None if sums is None else TableSums.from_dict(sums),
            None if held is None else _bins(*(np.asarray(each, np.float64) for each in held)),
            int(record["late"]),
            (int(labelled), int(unlabelled)),
            {str(name): Interval(*map(float, each)) for name, each in record["metrics"].items()},
            float(record["log_e_value"]),
        )


@dataclass(frozen=True)
class Alarm:
    """When the e-value reached 1/level, and whether the command for it has run."""

    window: str
    log_e_value: float
    bet: str
    level: float
    handled: bool = False


@dataclass(frozen=True, eq=False)
class WatchState:
    """All that a watcher knows; each method returns a new state.

    Attributes:
        settings: options that must not change: source, time column, width, bins, columns.
        process: the e-process of all labelled rows since the last reset.
        columns: what the columns mean, once the first rows were read.
        schema: kind and type of each column that is used.
        files: path in the folder to what was done with the file.
        windows: number to window; since 1970, or of the file.
        alarm: the alarm, if it is on.
        resets: how often the e-process was started anew.
    """

    settings: Mapping[str, Any]
    process: CalibrationEProcess
    columns: Columns | None = None
    schema: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    files: Mapping[str, SeenFile] = field(default_factory=dict)
    windows: Mapping[int, WatchedWindow] = field(default_factory=dict)
    alarm: Alarm | None = None
    resets: int = 0

    @classmethod
    def start(cls, settings: Mapping[str, Any]) -> "WatchState":
        """A state that has seen nothing."""
        return cls(dict(settings), CalibrationEProcess.start(settings["bins"]))

    def with_file(self, path: str, seen: SeenFile) -> "WatchState":
        """The state after a file."""
        return replace(self, files={**self.files, path: seen})

    def with_window(
        self, number: int, window: WatchedWindow, *, increment: BinSums | None, level: float
    ) -> "WatchState":
        """The state after rows of a window: the e-process bets on the increment, its new rows."""
        process, alarm = self.process, self.alarm
        if increment is not None and increment.count.any():
            process = process.update(increment)
            if alarm is None and process.alarm(level):
                alarm = Alarm(window.name, process.log_e_value, process.leading_bet, level)
        if window.sums is not None and window.sums is not getattr(
            self.windows.get(number), "sums", None
        ):
            window = replace(window, metrics=measured(window.sums, draws=500))
        # Late rows leave the e-value of their window as it was at its time.
        if number >= max(self.windows, default=number):
            window = replace(window, log_e_value=process.log_e_value)
        windows = dict(sorted({**self.windows, number: window}.items()))
        return replace(self, windows=windows, process=process, alarm=alarm)

    def start_of(self, number: int) -> datetime:
        """Start of a window in UTC."""
        return window_start(number, self.settings["every"])

    def name_of(self, number: int) -> str:
        """Start of a window in UTC, as text."""
        return time_text(self.start_of(number))

    def estimate(self, number: int) -> EstimatedAccuracy | None:
        """Estimated accuracy of the unlabelled rows of a window; None if it has none."""
        window = self.windows[number]
        if window.unlabelled is None or not window.unlabelled_rows:
            return None
        labelled = {at: each.labelled_rows for at, each in self.windows.items()}
        at = last_labelled(labelled, number)
        sums = None if at is None else self.windows[at].sums
        if at is None or sums is None:
            return estimate_accuracy(window.unlabelled, None)
        return estimate_accuracy(
            window.unlabelled, sums.part(0), reference_name=self.windows[at].name
        )

    def record(self, number: int) -> dict[str, Any]:
        """A window as a line of JSON has it."""
        window, estimated = self.windows[number], self.estimate(number)
        timed = self.settings["time"] is not None
        start = self.start_of(number).isoformat() if timed else None
        record = {
            "window": window.name,
            "start": start,
            "rows": window.labelled_rows,
            "unlabelled_rows": window.unlabelled_rows,
            "late_rows": window.late,
            "metrics": {name: asdict(each) for name, each in window.metrics.items()},
            "e_value": math.exp(min(window.log_e_value, 700.0)),
            "log_e_value": window.log_e_value,
            "estimated_accuracy": None if estimated is None else estimated.to_dict(),
        }
        plain: dict[str, Any] = json.loads(json.dumps(record), parse_constant=lambda _: None)
        return plain

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same bits back."""
        return {
            "version": VERSION,
            "settings": dict(self.settings),
            "process": self.process.to_dict(),
            "columns": None if self.columns is None else asdict(self.columns),
            "schema": {name: list(each) for name, each in self.schema.items()},
            "files": {path: asdict(each) for path, each in self.files.items()},
            "windows": {str(number): each.to_dict() for number, each in self.windows.items()},
            "alarm": None if self.alarm is None else asdict(self.alarm),
            "resets": self.resets,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "WatchState":
        """Load what `to_dict` saved."""
        if record["version"] != VERSION:
            raise ValueError(f"version must be {VERSION}, got {record['version']!r}")
        columns, alarm = record["columns"], record["alarm"]
        if columns is not None:
            names = columns["names"] and tuple(columns["names"])
            columns = Columns(**{**columns, "scores": tuple(columns["scores"]), "names": names})
        return cls(
            dict(record["settings"]),
            CalibrationEProcess.from_dict(record["process"]),
            columns,
            {name: (kind, text) for name, (kind, text) in record["schema"].items()},
            {path: SeenFile(**each) for path, each in record["files"].items()},
            {int(at): WatchedWindow.from_dict(each) for at, each in record["windows"].items()},
            None if alarm is None else Alarm(**alarm),
            int(record["resets"]),
        )


def save_state(folder: Path, state: WatchState) -> None:
    """Write the state, whole or not at all, with a digest of itself."""
    text = json.dumps(state.to_dict(), separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    with replacing(folder / STATE) as handle:
        handle.write(f'{{"sha256":"{digest}","state":{text}}}\n'.encode())


def load_state(folder: Path) -> WatchState | None:
    """Load the state of a folder; None if there is none, an error if it was changed."""
    path = folder / STATE
    if not path.exists():
        return None
    check_file(path)
    try:
        found = json.loads(path.read_bytes())
        text = json.dumps(found["state"], separators=(",", ":"))
        if hashlib.sha256(text.encode()).hexdigest() != found["sha256"]:
            raise ValueError("its digest differs")
        return WatchState.from_dict(found["state"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged: restore it from a backup, or start anew with another --state"
        ) from error


def _bins(count: np.ndarray, confidence: np.ndarray) -> BinSums:
    """Sums of unlabelled rows, whose correctness is unknown."""
    return BinSums(count, confidence, np.zeros_like(count), tuple(bin_edges(len(count))))
