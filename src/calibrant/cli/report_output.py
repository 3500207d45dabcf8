"""What `calibrant report --text` shows: verdict, table and weak spots of each group."""

import sys
from typing import TYPE_CHECKING

from rich.text import Text

from calibrant.cli import screen

if TYPE_CHECKING:
    from calibrant.report.findings import Findings
    from calibrant.report.saved import Saved
    from calibrant.report.table import Table

MARKS = {"best": "*", "equal": "=", "worse": " ", "unknown": "?"}
LEGEND = "* best, = not significantly worse, ? cannot be told"
# Letters between two columns.
GAP = 2


def show_report(saved: "Saved") -> None:
    """Print what a study found; as wide as the terminal, or as it is where there is none."""
    from calibrant.report.findings import findings

    found = findings(saved)
    _say(saved.name, "bold")
    if saved.about:
        _say(saved.about, "dim")
    for each in found:
        _show(each)


def _show(found: "Findings") -> None:
    print()
    _say(found.group.title, "bold")
    _say(f"{found.verdict.headline}.", "bold")
    for sentence in found.verdict.sentences:
        _say(sentence)
    if found.table.lines:
        print()
        _show_table(found.table)
    if found.weak_spots:
        _say("Where it fails", "bold")
    for sentence in found.weak_spots:
        _say(f"- {sentence}")


def _show_table(table: "Table") -> None:
    from calibrant.report.formatting import shown

    names = [[_plain(line.name), _plain(line.calibrator)] for line in table.lines]
    columns = {
        metric: [
            f"{shown(line.readings[metric].interval)} {MARKS[line.readings[metric].mark]}"
            if metric in line.readings
            else "-  "
            for line in table.lines
        ]
        for metric in table.metrics
    }
    heads = [table.axis, "calibrator"]
    taken = [max(map(len, column)) for column in zip(heads, *names, strict=True)]
    metrics = _fitting(columns, sum(taken) + GAP * len(taken))
    rows = [
        [*name, *(columns[metric][place] for metric in metrics)] for place, name in enumerate(names)
    ]
    screen.show_table((*heads, *map(_plain, metrics)), rows, numbers=[*map(_plain, metrics)])
    _say(f"{LEGEND}. {table.note}")
    if len(metrics) < len(columns):
        _say(f"Not shown for want of room: {', '.join(list(columns)[len(metrics) :])}.")
    print()


def _fitting(columns: dict[str, list[str]], taken: int) -> list[str]:
    """The first metrics for which a terminal has room, at least one; all without a terminal."""
    if not sys.stdout.isatty():
        return list(columns)
    room = screen.console().width - taken
    found: list[str] = []
    for metric, texts in columns.items():
        room -= max(map(len, (metric, *texts))) + GAP
        if found and room < 0:
            break
        found.append(metric)
    return found


def _say(text: str, style: str = "") -> None:
    """Print a paragraph; a terminal breaks it between words."""
    screen.console().print(Text(_plain(text), style=style))


def _plain(text: str) -> str:
    """Text without the control letters that a name may hold."""
    return "".join(each if each.isprintable() else " " for each in text)
