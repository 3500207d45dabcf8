"""The page of a study: which method to use, how certain that is, where it fails, and why."""

import math
from functools import partial
from pathlib import Path
from typing import Any

from calibrant.files.atomic import replacing
from calibrant.report.downloads import as_csv, as_latex, as_markdown
from calibrant.report.findings import Findings, findings
from calibrant.report.formatting import digits, name_of, number, shown, spread
from calibrant.report.gaps import BETTER, Reading
from calibrant.report.rendering import rendered
from calibrant.report.saved import Saved, read_saved
from calibrant.report.sections import PANELS, STUDY_PANELS, Panel
from calibrant.report.sections.reliability import reliability
from calibrant.report.sections.under_way import under_way
from calibrant.report.table import Line, Table

PAGE = "report.html"
# What colour says, for those who do not see it.
SAID = {"best": "best", "equal": "not significantly worse", "worse": "significantly worse"}
DOWNLOADS = {"csv": as_csv, "tex": as_latex, "md": as_markdown}


def study_page(folder: str | Path) -> Path:
    """Write the page of a study into its folder; nothing is trained or measured again."""
    saved = read_saved(folder)
    text = page(saved)
    with replacing(saved.folder / PAGE) as handle:
        handle.write(text.encode())
    return saved.folder / PAGE


def page(saved: Saved, *, scripts: str = "", connects: bool = False) -> str:
    """The page as text; the same files give the same bytes.

    Args:
        saved: the study.
        scripts: more of them, for a page that is served.
        connects: whether the page may ask its server for more.
    """
    done = sum(cell.done for cell in saved.cells)
    found = findings(saved)
    return rendered(
        "page.html",
        scripts=scripts,
        connects=connects,
        name=saved.name,
        about=saved.about,
        state=f"{done} of {len(saved.cells)} trainings are done.",
        groups=[_group(f"group-{place}", each) for place, each in enumerate(found, 1)],
        first=under_way(saved),
        study_panels=_panels(STUDY_PANELS, saved),
    )


def _group(key: str, found: Findings) -> dict[str, Any]:
    """One section: what is compared, best score first, and every panel with something to show."""
    table, chosen, proper = found.table, found.verdict.line, found.verdict.proper
    order = sorted(range(len(table.lines)), key=lambda place: _score(table.lines[place], proper))
    return {
        "key": key,
        "title": found.group.title,
        "verdict": found.verdict,
        "table": table,
        "weak_spots": found.weak_spots,
        "calibrators": list(dict.fromkeys(line.calibrator for line in table.lines)),
        "heads": [
            {
                "title": name_of(metric),
                "higher": BETTER.get(metric) == "higher",
                "sorted": "ascending" if metric == proper else "none",
            }
            for metric in table.metrics
        ],
        "lines": [
            {"place": place, "chosen": table.lines[place] is chosen, **_line(table, place)}
            for place in order
        ],
        "downloads": [(kind, f"{key}.{kind}", make(table)) for kind, make in DOWNLOADS.items()],
        "panels": _panels(
            {**PANELS, "reliability": partial(reliability, chosen=chosen.name if chosen else "")},
            found.group,
        ),
    }


def _score(line: Line, proper: str | None) -> float:
    """What lines are ordered by at first; those without it come last, in the study's order."""
    reading = line.readings.get(proper or "")
    return math.inf if reading is None else reading.cost


def _line(table: Table, place: int) -> dict[str, Any]:
    line = table.lines[place]
    cells = [_cell(line.readings.get(metric)) for metric in table.metrics]
    return {"name": line.name, "calibrator": line.calibrator, "cells": cells}


def _cell(reading: Reading | None) -> dict[str, str]:
    if reading is None:
        return dict.fromkeys(("mark", "value", "tip", "said", "ends"), "") | {"mean": "-"}
    interval = reading.interval
    tips = [f"{name_of(reading.metric)} {shown(interval)}"]
    tips += [f"seed {seed}: {each.value:.6g}" for seed, each in sorted(reading.runs.items())]
    if reading.gap is not None and reading.mark != "best":
        gap = reading.gap
        tips.append(f"to the best: {gap.value:+.4g} [{gap.low:+.3g}, {gap.high:+.3g}]")
    return {
        "mark": reading.mark,
        "value": repr(interval.value),
        "tip": "\n".join(tips),
        "said": SAID.get(reading.mark, ""),
        "mean": number(interval.value, digits(interval.low, interval.high)),
        "ends": spread(interval),
    }


def _panels(family: Any, of: Any) -> list[Panel]:
    made = (make(of) for make in family.values())
    return [panel for panel in made if panel is not None]
