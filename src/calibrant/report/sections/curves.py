"""Training curves: of finished runs, mean over the seeds; and of runs in progress."""

import math
from collections.abc import Sequence

from calibrant.report.charts.lines import Series, line_chart
from calibrant.report.charts.svg import MOST, legend, number_text, plot
from calibrant.report.charts.tables import table
from calibrant.report.readings import has_numbers, number
from calibrant.report.saved import Group, Saved, SavedCell
from calibrant.report.sections.panel import Panel, done_cells, plots

# Title of each column of a history, and whether its axis begins at zero and is plain.
CURVES = {
    "val_ece": ("ECE, validation", True),
    "val_nll": ("NLL, validation", False),
    "loss": ("Training loss", False),
}
# Shown of the last epoch.
LAST = {"loss": "loss", "val_accuracy": "accuracy", "val_nll": "NLL", "val_ece": "ECE"}


def curves(group: Group) -> Panel | None:
    """ECE, NLL and loss of every method along training."""
    cells = done_cells(group)
    figures = []
    for column, (title, zero) in CURVES.items():
        series = [over_seeds(name, own, column) for name, own in cells.items()]
        if not any(has_numbers(each.y) for each in series):
            continue
        if len(series) <= MOST:
            chart = line_chart(
                series, title=title, about=_ends(series), x_name="epoch", zero=zero, plain=zero
            )
            figures.append(plot(title, chart))
        elif column == "val_ece":
            figures += _alone(series)
    if not figures:
        return None
    many = max(map(len, cells.values())) > 1
    about = "Measured after each epoch on the validation split; the loss is on training data."
    about += " Mean over the seeds, with a band from the lowest to the highest." if many else ""
    if len(cells) > MOST:
        about += " One chart for each method; grey is the range of all."
    below = legend(list(cells)) if len(cells) <= MOST else ""
    html = plots(figures) + below
    return Panel("curves", "Training curves", about, html)


def over_seeds(name: str, cells: Sequence[SavedCell], column: str) -> Series:
    """Mean, lowest and highest number of each epoch over the trainings that came so far."""
    by_epoch: dict[float, list[float]] = {}
    for cell in cells:
        for place, row in enumerate(cell.history):
            value = number(row.get(column))
            if math.isfinite(value):
                by_epoch.setdefault(number(row.get("epoch", place)) + 1, []).append(value)
    x = sorted(filter(math.isfinite, by_epoch))
    mean = [math.fsum(by_epoch[at]) / len(by_epoch[at]) for at in x]
    if max(map(len, by_epoch.values()), default=0) < 2:
        return Series(name, x, mean)
    return Series(name, x, mean, [min(by_epoch[at]) for at in x], [max(by_epoch[at]) for at in x])


def _alone(series: Sequence[Series]) -> list[str]:
    """A chart for each, over the range of all."""
    places = sorted({x for each in series for x in each.x})
    held = [dict(zip(each.x, each.y, strict=True)) for each in series]
    values = [[own[x] for own in held if x in own] for x in places]
    low, high = [min(each) for each in values], [max(each) for each in values]
    everyone = Series("all methods", places, [math.nan] * len(places), low, high, role="all")
    found = []
    for each in series:
        own = Series("", each.x, each.y, each.low, each.high, role="s1 d0")
        chart = line_chart(
            [everyone, own],
            title=f"ECE of {each.name}, validation",
            about=_ends([each]),
            x_name="epoch",
            y_name="ECE",
            zero=True,
            plain=True,
            width=250,
            height=165,
        )
        found.append(plot(each.name, chart))
    return found


def _ends(series: Sequence[Series]) -> str:
    """The last number of each curve, in words."""
    said = [f"{each.name} {number_text(each.y[-1])}" for each in series if each.y]
    return f"Last epoch: {', '.join(said)}."


def in_progress(saved: Saved) -> Panel | None:
    """Training curves of the runs in progress, and their last epoch."""
    running = [cell for cell in saved.cells if cell.status == "running"]
    if not running:
        return None
    waiting = sum(cell.status == "pending" for cell in saved.cells)
    figures = []
    for column, (title, zero) in CURVES.items():
        series = [over_seeds(cell.label, [cell], column) for cell in running[:MOST]]
        if any(has_numbers(each.y) for each in series):
            chart = line_chart(series, title=title, x_name="epoch", zero=zero, plain=zero)
            figures.append(plot(title, chart))
    lines = [[cell.label, len(cell.history), *_last(cell)] for cell in running]
    head = ("run", "epochs", *LAST.values())
    numbers = table(head, lines, caption="Last epoch, on the validation split")
    html = plots(figures) + (legend([c.label for c in running[:MOST]]) if figures else "") + numbers
    about = f"Running: {len(running)}. Waiting for a worker: {waiting}."
    return Panel("running", "In progress", about, html)


def _last(cell: SavedCell) -> list[str]:
    row = cell.history[-1] if cell.history else {}
    return [number_text(number(row.get(column))) for column in LAST]
