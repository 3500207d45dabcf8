"""The page of `calibrant watch`, made from its state alone."""

import math
from collections import Counter
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import PurePath

from calibrant.metrics import Interval
from calibrant.report.charts.lines import Series as Line
from calibrant.report.charts.lines import line_chart
from calibrant.report.charts.reliability import gaps, overlay
from calibrant.report.charts.svg import legend, plot, plots, shape_legend
from calibrant.report.charts.tables import html_table
from calibrant.report.definitions import defined, definitions
from calibrant.report.formatting import value_with_interval
from calibrant.report.reliability_points import POSITIVE, TOP_LABEL
from calibrant.report.rendering import Panel, SavedPage, render
from calibrant.table_values import Table, count_text
from calibrant.tables.measures import summary_names
from calibrant.tables.watch_options import e_text
from calibrant.tables.watch_state import Status, WatchState

# Windows and files that are listed, the newest.
LISTED = 100
STATUS: dict[Status, str] = {
    "counted": "counted",
    "redelivered": "re-delivered",
    "left_out": "left out",
}
NO_INTERVAL = Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True, eq=False)
class WatchPage(SavedPage):
    """The page of a state; `level` is the probability of a false alarm."""

    source: str
    state: WatchState
    level: float

    def to_html(self) -> str:
        """A self-contained page."""
        table = defined(self.windows_table())
        made = (self._evidence(), self._reliability(), self._unlabelled(), self._files())
        about = "The newest first. The e-value of a window is the evidence after it was counted."
        return render(
            "audit.html",
            name=PurePath(self.source).name,
            facts=self.facts,
            verdict=self.verdict,
            state="calibrated" if self.state.alarm is None else "miscalibrated",
            step=None,
            panels=[
                *(each for each in made if each is not None),
                Panel("windows", "Windows", about, html_table(table)),
            ],
            columns=[],
            terms=definitions([table]),
        )

    @property
    def facts(self) -> str:
        """How much was counted, and what was not."""
        windows = self.state.windows.values()
        labelled, unlabelled = (
            sum(getattr(each, name) for each in windows)
            for name in ("labelled_rows", "unlabelled_rows")
        )
        said = [f"{len(windows):,} windows, {labelled:,} labelled rows"]
        said += [f"{unlabelled:,} unlabelled rows"] if unlabelled else []
        counts = Counter(each.status for each in self.state.files.values())
        files = [f"{counts[each]:,} {words}" for each, words in STATUS.items() if counts[each]]
        return ", ".join(said) + (f"; files: {', '.join(files)}" if files else "")

    @property
    def verdict(self) -> str:
        """One sentence: did calibration break, and when?"""
        alarm, process = self.state.alarm, self.state.process
        if alarm is not None:
            return (
                f"Calibration broke: e-value {e_text(alarm.log_e_value)} in window {alarm.window}, "
                f"alarm at {1 / alarm.level:.3g}. Leading bet: {alarm.bet}."
            )
        return (
            f"No alarm: e-value {e_text(process.log_e_value)} after {process.windows:,} increments,"
            f" alarm at {1 / self.level:.3g}."
        )

    def windows_table(self) -> Table:
        """Each window with its rows, metrics, evidence and estimate."""
        windows = self.state.windows
        came_late = any(each.late for each in windows.values())
        waits = any(each.unlabelled_rows for each in windows.values())
        heads = ["window", "rows", *(["late rows"] if came_late else [])]
        heads += ["accuracy", "ECE", "mean gap", "e-value"]
        heads += ["unlabelled rows", "estimated accuracy"] if waits else []
        rows = []
        for number in sorted(windows, reverse=True)[:LISTED]:
            window, estimated = windows[number], self.state.estimate(number)
            names = summary_names(1 if window.sums is None else window.sums.classes)
            found = [
                window.metrics.get(name, NO_INTERVAL)
                for name in ("accuracy", names["ece"], names["gap"])
            ]
            cells = [window.name, count_text(window.labelled_rows)]
            cells += [count_text(window.late)] if came_late else []
            cells += [value_with_interval(each) for each in found]
            cells += [e_text(window.log_e_value) if window.sums is not None else "-"]
            if waits:
                cells += [count_text(window.unlabelled_rows)]
                cells += ["-" if estimated is None else value_with_interval(estimated.accuracy)]
            rows.append(cells)
        return Table.of(heads, rows, numbers=heads[1:], caption="Windows")

    def _positions(self, numbers: list[int]) -> tuple[list[float], str]:
        """Where windows are on an axis: days since the first, or numbers of files."""
        if self.state.settings["time"] is None:
            return [float(number) for number in numbers], "file"
        starts = [self.state.start_of(number).timestamp() / 86400 for number in numbers]
        first = min(self.state.windows)
        return [each - self.state.start_of(first).timestamp() / 86400 for each in starts], "days"

    def _evidence(self) -> Panel | None:
        numbers = [at for at, each in self.state.windows.items() if each.sums is not None]
        if not numbers:
            return None
        x, unit = self._positions(numbers)
        windows = [self.state.windows[at] for at in numbers]
        evidence = Line("log10 e-value", x, [each.log_e_value / math.log(10) for each in windows])
        limit = -math.log10(self.level)
        drawn = line_chart(
            [evidence], "Evidence of miscalibration", unit, plain=True, guides=[limit]
        )
        name = summary_names(next(each.sums.classes for each in windows if each.sums))["ece"]
        found = [each.metrics[name] for each in windows]
        ece = Line(
            "ECE", x, [f.value for f in found], [f.low for f in found], [f.high for f in found]
        )
        figures = [
            plot("Evidence (log10 e-value)", drawn, note=f"dashed: alarm at {1 / self.level:.3g}"),
            plot("ECE of each window", line_chart([ece], "ECE of each window", unit, zero=True)),
        ]
        about = (
            "The e-value is evidence against calibration, valid whenever you look: calibrated "
            f"predictions ever reach {1 / self.level:.3g} with a probability of at most "
            f"{100 * self.level:g} %."
        )
        if self.state.resets:
            about += f" Resets so far: {self.state.resets:,}."
        return Panel("evidence", "Evidence in time", about, plots(figures))

    def _reliability(self) -> Panel | None:
        held = [each for each in self.state.windows.values() if each.sums is not None]
        if not held:
            return None
        every = [each.sums.part(each.sums.focus) for each in held if each.sums is not None]
        classes = held[-1].sums.classes if held[-1].sums is not None else 1
        terms = POSITIVE if classes == 2 else TOP_LABEL
        newest = held[-1].name
        figures = [
            plot(
                title,
                overlay({title: sums}, title=title, terms=terms),
                note=f"{int(sums.count.sum()):,} rows, ECE {sums.ece:.4f}",
            )
            for title, sums in (("All windows", reduce(add, every)), (newest, every[-1]))
        ]
        title = f"Gap of each bin, {newest}"
        figures.append(plot(title, gaps(every[-1], title=title, terms=terms)))
        about = f"{terms.diagonal} All windows, and the newest with labels."
        html = shape_legend(terms.pair_key) + plots(figures)
        return Panel("reliability", "Reliability", about, html)

    def _unlabelled(self) -> Panel | None:
        found = {at: self.state.estimate(at) for at in self.state.windows}
        held = {at: each for at, each in found.items() if each is not None}
        if not held:
            return None
        x, unit = self._positions(list(held))
        each = [estimated.accuracy for estimated in held.values()]
        lines = [
            Line("estimated", x, [e.value for e in each], [e.low for e in each],
                 [e.high for e in each])
        ]  # fmt: skip
        known = [at for at, window in self.state.windows.items() if window.metrics]
        if known:
            x, unit = self._positions(known)
            true = [self.state.windows[at].metrics["accuracy"] for at in known]
            lines.append(
                Line("measured", x, [t.value for t in true], [t.low for t in true],
                     [t.high for t in true])
            )  # fmt: skip
        drawn = line_chart(lines, "Accuracy of each window", unit, plain=True)
        about = (
            "The accuracy of rows without labels is an estimate. It assumes that each bin is still "
            "as accurate as in the last labelled window. If calibration has broken since, only "
            "labels can show it."
        )
        html = plots([plot("Accuracy", drawn)], beside=legend([line.name for line in lines]))
        return Panel("unlabelled", "Labels that have not arrived", about, html)

    def _files(self) -> Panel | None:
        noted = [(path, each) for path, each in self.state.files.items() if each.note]
        if not noted:
            return None
        rows = [[path, STATUS[each.status], each.note] for path, each in noted[::-1][:LISTED]]
        table = Table.of(["file", "status", "note"], rows, caption="Files with a note")
        about = "Late, re-delivered, changed and damaged files, the newest first."
        return Panel("files", "Files", about, html_table(table))
