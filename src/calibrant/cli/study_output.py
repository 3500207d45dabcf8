"""What `calibrant study` shows: a live view, the estimate, and the table of results."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from calibrant.cli import screen
from calibrant.table_values import Table

if TYPE_CHECKING:
    from calibrant.study.estimate import Estimate
    from calibrant.study.grid import Study
    from calibrant.study.rows import Row
    from calibrant.study.runner import Snapshot
    from calibrant.study.runs import RunState

# Seconds between two plain lines, where the output is no terminal.
PATIENCE = 10.0
# Runs in progress that are shown by name.
SHOWN = 8


class View:
    """Runs done, running and failed, time left, and the best so far."""

    def __init__(self, study: "Study", folder: Path, *, quiet: bool) -> None:
        self.cells, self.folder, self.quiet = study.cells(), folder, quiet
        self.best = Best(study, folder)
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
        named = list(zip(self.cells, snapshot.cells, strict=True))
        bad = [(cell, s) for cell, s in named if s.status in ("failed", "diverged")]
        running = [(cell, s) for cell, s in named if s.status == "running"]
        ended = len(bad) + sum(state.status == "done" for state in snapshot.cells)
        # Runs that earlier commands finished say nothing about the time left.
        self.before = ended if self.before is None else self.before
        line = f"{ended - len(bad)} of {len(self.cells)} runs done, {len(running)} running"
        if bad:
            line += f", {len(bad)} failed or diverged"
        line += self._left(snapshot.seconds, ended)
        if self.live is not None:
            self.bar.update(self.task, completed=ended)
            lines = [line, self.best.line(snapshot.cells)]
            lines += [f"  {cell.label}: {self._epochs(s)} epochs" for cell, s in running[:SHOWN]]
            lines += [f"{cell.label}: {s.status}, {s.reason}" for cell, s in bad[-3:]]
            self.live.update(Group(self.bar, *(Text(each) for each in lines if each)))
        elif (
            not self.quiet
            and line != self.last
            and (ended == len(self.cells) or time.monotonic() - self.said > PATIENCE)
        ):
            best = self.best.line(snapshot.cells)
            print(line + (best and f"; {best}"), file=sys.stderr, flush=True)
            self.last, self.said = line, time.monotonic()

    def _left(self, seconds: float, ended: int) -> str:
        new = ended - (self.before or 0)
        if not new or ended == len(self.cells):
            return ""
        return f", about {duration(seconds / new * (len(self.cells) - ended))} left"

    def _epochs(self, state: "RunState") -> int:
        history = self.folder / "cells" / state.id / "history.jsonl"
        return history.read_text().count("\n") if history.is_file() else 0


class Best:
    """The method and calibrator with the lowest mean test NLL over the seeds finished so far.

    Only means of one dataset and network are compared: the first of the study with a result.
    """

    def __init__(self, study: "Study", folder: Path) -> None:
        self.cells, self.folder = study.cells(), folder
        self.several = len(study.dataset) * len(study.model) > 1
        self.optimizers = len(study.optimizer) > 1
        self.read: dict[str, list[Row]] = {}

    def line(self, states: Sequence["RunState"]) -> str:
        """What is best so far; empty before the first result, or if no NLL is measured."""
        found: dict[tuple[str, str], dict[tuple[str, str, str], list[float]]] = {}
        for cell, state in zip(self.cells, states, strict=True):
            place = (cell.dataset.label, cell.model.label)
            for row in self._rows(state) if state.status == "done" else ():
                key = (cell.method.label, cell.optimizer.label, row.calibrator)
                if row.value is not None:
                    found.setdefault(place, {}).setdefault(key, []).append(row.value)
        for place, means in found.items():
            (method, optimizer, calibrator), values = min(means.items(), key=lambda e: mean(e[1]))
            where = f" on {', '.join(place)}" if self.several else ""
            name = f"{method}, {optimizer}" if self.optimizers else method
            how = "without a calibrator" if calibrator == "none" else f"with {calibrator}"
            seeds = f"{len(values)} seed{'s' if len(values) > 1 else ''}"
            return f"best so far{where}: {name} {how}, nll {mean(values):.4f} ({seeds})"
        return ""

    def _rows(self, state: "RunState") -> list["Row"]:
        """Test NLL of a finished run; read once, as finished runs do not change."""
        from calibrant.study.rows import read_rows

        if state.id not in self.read:
            try:
                rows = read_rows(self.folder / "cells" / state.id)
            except (OSError, ValueError):
                # Not a reason to end a study: the rows are made again, or refused, at its end.
                rows = []
            self.read[state.id] = [r for r in rows if (r.split, r.metric) == ("test", "nll")]
        return self.read[state.id]


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
    """A table of the kinds of runs and the sum."""
    rows = [(e.label, str(e.cells), duration(e.seconds)) for e in times]
    screen.show_table(("run", "seeds", "each"), rows, numbers=("seeds", "each"))
    total = sum(e.seconds * e.cells for e in times)
    screen.say(
        f"about {duration(total)} of training one run after the other, estimated from a few steps; "
        "measuring comes on top" + (f"; {workers} workers share the cores" if workers > 1 else "")
    )


def show_study(
    study: "Study", folder: Path, rows: Sequence["Row"], ended: Sequence["RunState"]
) -> None:
    """Means over the seeds, with their spread or, for one seed, the interval over examples."""
    metrics = [name for name in study.metrics if name in {row.metric for row in rows}]
    groups: dict[tuple[str, ...], dict[str, list[Row]]] = {}
    for row in rows:
        if row.split == "test":
            key = (row.dataset, row.model, row.optimizer, row.method, row.calibrator)
            groups.setdefault(key, {}).setdefault(row.metric, []).append(row)
    axes = (study.dataset, study.model, study.optimizer)
    varied = [*(len(axis) > 1 for axis in axes), True, True]
    heads = [name for name, several in zip(HEADS, varied, strict=True) if several]
    names = [[p for p, several in zip(key, varied, strict=True) if several] for key in groups]
    rows_shown = [
        [*name, *(_cell(metric, found.get(metric, [])) for metric in metrics)]
        for name, found in zip(names, groups.values(), strict=True)
    ]
    table = Table.of((*heads, *metrics), rows_shown, numbers=metrics)
    hidden = screen.print_table(table, keep=len(heads) + 2)
    seeds = len(study.seeds)
    over = f"mean of {seeds} seeds, 95 % interval of a single run over test examples and seeds"
    screen.say(f"test split: {over if seeds > 1 else 'one seed, 95 % interval over test examples'}")
    if hidden:
        screen.say(f"hidden, terminal too narrow: {', '.join(hidden)}; see rows.csv")
    for line in _failures(study, ended):
        screen.say(line)
    screen.say(f"written: {folder}")


def _failures(study: "Study", ended: Sequence["RunState"]) -> list[str]:
    """One line for each way in which runs did not succeed."""
    labels: dict[tuple[str, str], list[str]] = {}
    for cell, state in zip(study.cells(), ended, strict=True):
        if state.status != "done":
            labels.setdefault((state.status, state.reason), []).append(cell.label)
    return [
        f"{status}: {f'{len(others) + 1} runs, the first is ' if others else ''}{first}: {reason}"
        for (status, reason), (first, *others) in labels.items()
    ]


HEADS = ("dataset", "model", "optimizer", "method", "calibrator")


def _cell(metric: str, rows: list["Row"]) -> str:
    from calibrant.metrics.resampling.seeds import over_runs

    reading = over_runs(metric, [(row.value, row.low, row.high) for row in rows])
    return f"{reading.value:.4f} [{reading.low:.3f}, {reading.high:.3f}]" if reading else "-"
