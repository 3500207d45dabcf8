"""NLL over the two parameters of focal temperature scaling."""

import numpy as np

from calibrant.calibrators import TemperatureScaling
from calibrant.calibrators.focal_temperature import FocalTemperatureScaling
from calibrant.metrics import nll
from calibrant.predictions import Predictions
from calibrant.report.charts.axes import Axes, Scale, curve
from calibrant.report.charts.heatmap import surface
from calibrant.report.charts.svg import chart, element, line, mark, plot, plots, shape_legend
from calibrant.report.figures.focal_landscape import GAMMAS, Landscape, landscape_of
from calibrant.report.measured import subsample
from calibrant.report.saved import Group, SavedCell
from calibrant.report.sections.panel import Panel, first_cells
from calibrant.scoped_warnings import without_warnings

# Logits, and rows and columns of the grid: with more logits it is coarser, to take no second.
FEW, MANY = 1 << 15, 1 << 17
DENSE, COARSE = (15, 27), (11, 21)
TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20)
WIDTH, HEIGHT = 560.0, 340.0
KEY = {
    "heat": "higher NLL",
    "path": "best T for each gamma",
    "guide": "gamma = 0, temperature scaling",
    "spot": "lowest NLL",
    "spot hollow": "lowest with gamma = 0",
}


def landscape(group: Group) -> Panel | None:
    """NLL on the validation split, first seed of cross entropy, or of the first method."""
    chosen = _chosen(group)
    if chosen is None:
        return None
    name, cell, val = chosen
    part, step = subsample(val, MANY)
    # Small validation sets warn; the picture shows how flat the NLL is.
    with without_warnings():
        try:
            fitted, plain = FocalTemperatureScaling.fit(part), TemperatureScaling.fit(part)
        except ValueError:
            return None
    rows, columns = DENSE if len(part) * part.classes <= FEW else COARSE
    low, high = sorted((fitted.temperature, plain.temperature))
    gammas = min(GAMMAS[0], fitted.gamma), max(GAMMAS[1], fitted.gamma)
    found = landscape_of(
        part,
        fitted,
        np.linspace(*gammas, rows).tolist(),
        np.geomspace(low / 2, high * 2.5, columns).tolist(),
    )
    figure, words = _draw(found, plain, nll(part.map(plain)), name)
    many = "" if step == 1 else f" every {step}th of"
    about = (
        f"NLL of {name}, seed {cell.seed}, on{many} the {len(val):,} validation examples, for each "
        "temperature T and gamma. A stronger colour is a higher NLL. If NLL is flat along the "
        "line, gamma does not help."
    )
    html = plots([plot(name, figure, note=words)], free=True) + shape_legend(KEY)
    return Panel("landscape", "Temperature and gamma", about, html)


def _chosen(group: Group) -> tuple[str, SavedCell, Predictions] | None:
    """Cross entropy if the study has it; with two classes both parameters do the same."""
    cells = first_cells(group)

    def plain(cell: SavedCell) -> bool:
        identity = (cell.record or {}).get("identity") or {}
        return bool(identity.get("method.name") == "cross_entropy")

    for name in sorted(cells, key=lambda name: not plain(cells[name])):
        val = cells[name].val
        if val is not None:
            return None if val.classes < 3 else (name, cells[name], val)
    return None


def _draw(found: Landscape, plain: TemperatureScaling, scaled: float, name: str) -> tuple[str, str]:
    """The chart, and the best parameters in words."""
    fitted = found.fitted
    temperatures, gammas = found.temperatures.tolist(), found.gammas.tolist()
    axes = Axes(
        Scale(temperatures[0], temperatures[-1], 46, WIDTH - 12, log=True),
        Scale(gammas[0], gammas[-1], HEIGHT - 38, 24),
    )

    def tip(i: int, j: int) -> str:
        return f"T {temperatures[j]:.3g}, gamma {gammas[i]:.2f}: NLL {found.values[i, j]:.4f}"

    best = f"{found.lowest:.4f} at T = {fitted.temperature:.3g}, gamma = {fitted.gamma:.3g}"
    second = f"{scaled:.4f} at T = {plain.temperature:.3g}, gamma = 0"
    ticks = [t for t in TICKS if temperatures[0] <= t <= temperatures[-1]]
    level = axes.x.start, axes.y(0), axes.x.end, axes.y(0)
    ends = {"low": found.lowest, "high": found.top}
    parts = [
        axes.draw(x_name="temperature T", y_name="gamma", x_ticks=ticks or None),
        surface(axes, found.values.tolist(), x=temperatures, y=gammas, **ends, tip=tip),
        *(line(*level, role=role) for role in ("halo", "guide")),
        *(curve(axes, found.ridge.tolist(), gammas, role=role) for role in ("halo", "path")),
        _spot(axes, plain.temperature, 0.0, f"NLL {second}", "spot hollow"),
        _spot(axes, fitted.temperature, fitted.gamma, f"NLL {best}", "spot"),
    ]
    words = f"lowest NLL {best}; {second}"
    title = f"NLL of {name} over temperature and gamma"
    return chart(*parts, width=WIDTH, height=HEIGHT, title=title, about=words), words


def _spot(axes: Axes, x: float, y: float, tip: str, role: str) -> str:
    return mark(element("circle", cx=axes.x(x), cy=axes.y(y), r=5, class_=role), tip=tip)
