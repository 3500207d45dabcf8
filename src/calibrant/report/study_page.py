"""The page of a study: which method to use, how certain that is, where it fails, and why."""

from functools import partial
from pathlib import Path
from typing import Any

from calibrant.report.charts.tables import MARK_KEY, sortable_table
from calibrant.report.definitions import defined, definitions
from calibrant.report.display_names import calibrator_name
from calibrant.report.downloads import as_csv, as_latex, as_markdown
from calibrant.report.findings import Findings, findings
from calibrant.report.formatting import name_of
from calibrant.report.rendering import render, write_page
from calibrant.report.saved import Saved, read_saved
from calibrant.report.sections import PANELS, STUDY_PANELS, Panel
from calibrant.report.sections.curves import in_progress
from calibrant.report.sections.reliability import reliability

PAGE = "report.html"
DOWNLOADS = {"csv": as_csv, "tex": as_latex, "md": as_markdown}


def study_page(folder: str | Path) -> Path:
    """Write the page of a study into its folder; nothing is trained or measured again."""
    saved = read_saved(folder)
    return write_page(saved.folder / PAGE, page(saved))


def page(saved: Saved, *, scripts: str = "", connects: bool = False) -> str:
    """The page as text; the same files give the same bytes.

    A served page has more `scripts`, and `connects` to its server.
    """
    done = sum(cell.done for cell in saved.cells)
    found = findings(saved)
    return render(
        "page.html",
        scripts=scripts,
        connects=connects,
        name=saved.name,
        about=saved.about,
        state=f"{done} of {len(saved.cells)} runs are done.",
        groups=[_group(f"group-{place}", each) for place, each in enumerate(found, 1)],
        mark_key=MARK_KEY,
        first=in_progress(saved),
        study_panels=[
            *_panels(STUDY_PANELS, saved),
            *(
                [definitions(tables)]
                if (tables := [f.comparison.as_table() for f in found])
                else []
            ),
        ],
    )


def _group(key: str, found: Findings) -> dict[str, Any]:
    """One section: the verdict, the comparison, and every panel with something to show."""
    comparison, verdict = found.comparison, found.verdict
    table = defined(comparison.as_table(verdict.line))
    best = verdict.line.name if verdict.line else ""
    return {
        "key": key,
        "title": found.group.title,
        "verdict": verdict,
        "comparison": comparison,
        "weak_spots": found.weak_spots,
        "calibrators": {
            line.calibrator: calibrator_name(line.calibrator) for line in comparison.combinations
        },
        "table": sortable_table(table, sorted_by=name_of(verdict.proper or "")),
        "downloads": [
            (kind, f"{key}.{kind}", make(comparison)) for kind, make in DOWNLOADS.items()
        ],
        "panels": _panels(
            {**PANELS, "reliability": partial(reliability, chosen=best)}, found.group
        ),
    }


def _panels(family: Any, of: Any) -> list[Panel]:
    made = (make(of) for make in family.values())
    return [panel for panel in made if panel is not None]
