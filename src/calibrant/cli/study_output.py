"""What `calibrant study` shows: a live view, the estimate, and the table of results."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from calibrant.cli import screen

if TYPE_CHECKING:
    from calibrant.study.estimate import Estimate
    from calibrant.study.grid import Study
    from calibrant.study.rows import Row
    from calibrant.study.runner import Snapshot
    from calibrant.study.store import CellState

# Seconds between two plain lines, where the output is no terminal.
PATIENCE = 10.0
# Running cells that are shown by name.
SHOWN = 8


class View:
    """Cells done, running and failed, time left, and the best so far."""

    def __init__(self, study: "Study", folder: Path, *, quiet: bool) -> None:
        self.cells, self.folder, self.quiet = study.cells(), folder, quiet
        self.said = time.monotonic()
        self.last = ""
        self.live: Live | None = None
        self.before: int | None = None
        columns = (TextColumn(study.name), BarColumn(), MofNCompleteColumn())
        self.bar = Progress(*columns)
        self.task = self.bar.add_task(study.name, total=len(self.cells))
        if not self.quiet and sys.stderr.isatty():
            self.live = Live(console=Console(stderr=True), transient=True, refresh_per_second=4)
            self.live.start()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.live is not None:
            self.live.stop()

    def update(self, snapshot: "Snapshot") -> None:
        """Show how things stand."""
        done = [state for state in snapshot.cells if state.status == "done"]
        bad = [state for state in snapshot.cells if state.status in ("failed", "diverged")]
        running = [state for state in snapshot.cells if state.status == "running"]
        ended = len(done) + len(bad)
        # Cells of earlier runs of the command say nothing about the time left.
        self.before = ended if self.before is None else self.before
        line = f"{ended} of {len(self.cells)} cells, {len(running)} running"
        if bad:
            line += f", {len(bad)} failed or diverged"
        line += self._left(snapshot.seconds, ended)
        if self.live is not None:
            self.bar.update(self.task, completed=ended)
            lines = [self._of_cell(state) for state in running[:SHOWN]]
            lines += [f"{self._name(state)}: {state.status}, {state.reason}" for state in bad[-3:]]
            self.live.update(Group(self.bar, Text(line), *(Text(each) for each in lines)))
        elif not self.quiet and line != self.last and self._due(ended):
            print(line, file=sys.stderr, flush=True)
            self.last, self.said = line, time.monotonic()

    def _left(self, seconds: float, ended: int) -> str:
        new = ended - (self.before or 0)
        if not new or ended == len(self.cells):
            return ""
        return f", about {duration(seconds / new * (len(self.cells) - ended))} left"

    def _due(self, ended: int) -> bool:
        return ended == len(self.cells) or time.monotonic() - self.said > PATIENCE

    def _name(self, state: "CellState") -> str:
        return self.cells[state.position].label if state.position < len(self.cells) else state.id

    def _of_cell(self, state: "CellState") -> str:
        history = self.folder / "cells" / state.id / "history.jsonl"
        epochs = history.read_text().count("\n") if history.exists() else 0
        return f"  {self._name(state)}: {epochs} epochs"


def duration(seconds: float) -> str:
    """A length of time for people.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2 h 30 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def show_estimates(times: Sequence["Estimate"], workers: int) -> None:
    """A table of the kinds of cells and the sum."""
    rows = [(e.label, str(e.cells), duration(e.seconds)) for e in times]
    screen.show_table(("cell", "seeds", "each"), rows, numbers=("seeds", "each"))
    total = sum(e.seconds * e.cells for e in times)
    screen.say(
        f"about {duration(total)} of training with one worker, by the time of a few steps; "
        f"{workers} share the cores"
    )


def show_study(
    study: "Study", folder: Path, rows: Sequence["Row"], ended: Sequence["CellState"]
) -> None:
    """Means over the seeds, with their spread or, for one seed, the interval over examples."""
    metrics = [name for name in study.metrics if name in {row.metric for row in rows}]
    groups: dict[tuple[str, ...], dict[str, list[Row]]] = {}
    for row in rows:
        if row.split == "test":
            key = (row.dataset, row.model, row.optimizer, row.method, row.calibrator)
            groups.setdefault(key, {}).setdefault(row.metric, []).append(row)
    varied = _varied(list(groups))
    heads = [name for name, several in zip(HEADS, varied, strict=True) if several]
    table = [
        [*(part for part, several in zip(key, varied, strict=True) if several)]
        + [_cell(found.get(metric, [])) for metric in metrics]
        for key, found in groups.items()
    ]
    screen.show_table((*heads, *metrics), table, numbers=metrics)
    seeds = len(study.seeds)
    what = "plus or minus the standard deviation over seeds" if seeds > 1 else "95 % interval"
    screen.say(f"test split, {seeds} seed{'s' if seeds > 1 else ''}: {what}")
    for state in ended:
        if state.status != "done":
            label = study.cells()[state.position].label
            screen.say(f"{state.status}: {label}: {state.reason}")
    screen.say(f"written: {folder}")


HEADS = ("dataset", "model", "optimizer", "method", "calibrator")


def _varied(keys: list[tuple[str, ...]]) -> list[bool]:
    """Which columns tell rows apart; method and calibrator are always shown."""
    several = [len(set(column)) > 1 for column in zip(*keys, strict=True)] or [False] * 5
    return [*several[:3], True, True]


def _cell(rows: list[Any]) -> str:
    values = [row.value for row in rows if row.value is not None]
    if not values:
        return "-"
    if len(values) > 1:
        return f"{mean(values):.4f} ± {stdev(values):.4f}"
    (row,) = [row for row in rows if row.value is not None]
    return f"{row.value:.4f} [{row.low:.4f}, {row.high:.4f}]"
