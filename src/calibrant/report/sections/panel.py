"""What the panels of a page share: their type, and which trainings they show."""

from collections.abc import Sequence
from dataclasses import dataclass

from calibrant.report.saved import Group, Row, SavedCell

# Calibrators before and after which panels show things, in words.
STAGES = {"none": "as trained", "temperature": "after temperature"}


@dataclass(frozen=True)
class Panel:
    """One part of a page.

    Attributes:
        key: a word for addresses within the page.
        title: its heading.
        about: how to read it, in a sentence.
        html: its charts and tables.
        wide: whether it wants the whole width.
    """

    key: str
    title: str
    about: str
    html: str
    wide: bool = True


def done_cells(group: Group) -> dict[str, list[SavedCell]]:
    """Finished trainings by what is compared, in the order of the study."""
    found: dict[str, list[SavedCell]] = {}
    for cell in group.cells:
        if cell.done:
            found.setdefault(cell.labels[group.axis], []).append(cell)
    return found


def first_cells(group: Group) -> dict[str, SavedCell]:
    """The first seed of each."""
    return {name: cells[0] for name, cells in done_cells(group).items()}


def plots(figures: Sequence[str]) -> str:
    """Figures beside one another, as many as there is room for."""
    return f'<div class="plots">{"".join(figures)}</div>'


def by_name(group: Group, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that have a value, by what is compared; names without one are left out."""
    found: dict[str, list[Row]] = {name: [] for name in group.names}
    for row in rows:
        if row["value"] is not None:
            found.setdefault(row[group.axis], []).append(row)
    return {name: own for name, own in found.items() if own}
