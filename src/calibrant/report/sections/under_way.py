"""Runs that have started and not ended."""

from calibrant.report.charts.lines import line_chart
from calibrant.report.charts.svg import MOST, legend, plot, shown
from calibrant.report.charts.tables import table
from calibrant.report.readings import has_numbers, number
from calibrant.report.saved import Saved, SavedCell
from calibrant.report.sections.curves import CURVES, over_seeds
from calibrant.report.sections.panel import Panel, plots

# Shown of the last epoch.
LAST = {"loss": "loss", "val_accuracy": "accuracy", "val_nll": "NLL", "val_ece": "ECE"}


def under_way(saved: Saved) -> Panel | None:
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
    return [shown(number(row.get(column))) for column in LAST]
