"""Training curves: of finished runs, mean over the seeds; and of runs in progress."""

import math
from collections.abc import Mapping, Sequence

from calibrant.report.charts.lines import Series, line_chart
from calibrant.report.charts.svg import MOST, legend, number_text, plot, plots
from calibrant.report.charts.tables import table
from calibrant.report.readings import column, has_numbers, number
from calibrant.report.saved import Group, Saved, SavedCell
from calibrant.report.sections.panel import Panel, done_cells

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
    figures = _together(cells) if len(cells) <= MOST else _alone(cells)
    if not figures:
        return None
    about = "Measured after each epoch on the validation split; the loss is on training data."
    if max(map(len, cells.values())) > 1:
        about += " Mean over the seeds, with a band from the lowest to the highest."
    if len(cells) > MOST:
        about += " One chart for each method; grey is the range of all."
    html = plots(figures) + (legend(list(cells)) if len(cells) <= MOST else "")
    return Panel("curves", "Training curves", about, html)


def over_seeds(name: str, cells: Sequence[SavedCell], logged: str) -> Series:
    """Mean, lowest and highest number of each epoch over the trainings that came so far."""
    by_epoch: dict[float, list[float]] = {}
    for cell in cells:
        for place, row in enumerate(cell.history):
            value = number(row.get(logged))
            if math.isfinite(value):
                by_epoch.setdefault(number(row.get("epoch", place)) + 1, []).append(value)
    x = sorted(filter(math.isfinite, by_epoch))
    mean = [math.fsum(by_epoch[at]) / len(by_epoch[at]) for at in x]
    if max(map(len, by_epoch.values()), default=0) < 2:
        return Series(name, x, mean)
    return Series(name, x, mean, [min(by_epoch[at]) for at in x], [max(by_epoch[at]) for at in x])


def _together(runs: Mapping[str, Sequence[SavedCell]]) -> list[str]:
    """A chart for each column with all runs."""
    figures = []
    for logged, (title, zero) in CURVES.items():
        series = [over_seeds(name, cells, logged) for name, cells in runs.items()]
        if any(has_numbers(each.y) for each in series):
            about = _ends(series)
            chart = line_chart(series, title, "epoch", about=about, zero=zero, plain=zero)
            figures.append(plot(title, chart))
    return figures


def _alone(runs: Mapping[str, Sequence[SavedCell]]) -> list[str]:
    """A chart of the ECE for each run, over the range of all."""
    series = [over_seeds(name, cells, "val_ece") for name, cells in runs.items()]
    by_place: dict[float, list[float]] = {}
    for each in series:
        for x, y in zip(each.x, each.y, strict=True):
            by_place.setdefault(x, []).append(y)
    places = sorted(by_place)
    low, high = ([end(by_place[x]) for x in places] for end in (min, max))
    everyone = Series("all methods", places, [math.nan] * len(places), low, high, role="all")
    found = []
    for each in series if places else ():
        own = Series("", each.x, each.y, each.low, each.high, role="s1 d0")
        chart = line_chart(
            [everyone, own],
            f"ECE of {each.name}, validation",
            "epoch",
            about=_ends([each]),
            y_name="ECE",
            zero=True,
            plain=True,
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
    running = {cell.label: [cell] for cell in saved.cells if cell.status == "running"}
    if not running:
        return None
    waiting = sum(cell.status == "pending" for cell in saved.cells)
    shown = dict(list(running.items())[:MOST])
    figures = _together(shown)
    lines = []
    for name, (cell,) in running.items():
        last = [number_text(*column(cell.history[-1:] or [{}], each)) for each in LAST]
        lines.append([name, len(cell.history), *last])
    head, caption = ("run", "epochs", *LAST.values()), "Last epoch, on the validation split"
    html = plots(figures) + (legend(list(shown)) if figures else "")
    about = f"Running: {len(running)}. Waiting for a worker: {waiting}."
    return Panel("running", "In progress", about, html + table(head, lines, caption=caption))
