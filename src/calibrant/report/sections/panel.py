"""What the panels of a page share: their type, which runs they show, means over the seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from calibrant.report.charts.dots import Dot
from calibrant.report.saved import Group, SavedCell

# Calibrators before and after which panels show things, in words.
STAGES = {"none": "as trained", "temperature": "after temperature scaling"}
# Name, calibrator, split, metric.
Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Panel:
    """One part of a page: a word for its address, heading, how to read it, charts and tables.

    A `wide` one takes the whole width.
    """

    key: str
    title: str
    about: str
    html: str
    wide: bool = True


def done_cells(group: Group) -> dict[str, list[SavedCell]]:
    """Finished runs by name, in the order of the study."""
    found: dict[str, list[SavedCell]] = {}
    for cell in group.cells:
        if cell.done:
            found.setdefault(cell.labels[group.axis], []).append(cell)
    return found


def first_cells(group: Group) -> dict[str, SavedCell]:
    """The first seed of each."""
    return {name: cells[0] for name, cells in done_cells(group).items()}


def seed_means(group: Group) -> dict[Key, Dot]:
    """Mean, lowest and highest value over the seeds, of rows that have a value."""
    held: dict[Key, list[float]] = {}
    for row in group.rows:
        if row["value"] is not None:
            key = (row[group.axis], row["calibrator"], row["split"], row["metric"])
            held.setdefault(key, []).append(row["value"])
    return {key: Dot(math.fsum(v) / len(v), min(v), max(v)) for key, v in held.items()}


def plots(figures: Sequence[str]) -> str:
    """Figures side by side, as many as there is room for."""
    return f'<div class="plots">{"".join(figures)}</div>'
