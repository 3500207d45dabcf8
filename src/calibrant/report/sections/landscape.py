"""The log score over the two numbers of focal temperature scaling."""

import warnings

import numpy as np

from calibrant.calibrators import TemperatureScaling
from calibrant.calibrators.focal_temperature import FocalTemperatureScaling, focal_landscape
from calibrant.predictions import Predictions
from calibrant.report.charts.axes import Axes
from calibrant.report.charts.heatmap import surface
from calibrant.report.charts.paths import curve
from calibrant.report.charts.scales import Scale
from calibrant.report.charts.svg import chart, element, key, line, mark, plot
from calibrant.report.landscape import SHOWN, ridge
from calibrant.report.measured import sampled
from calibrant.report.saved import Group, SavedCell
from calibrant.report.sections.panel import Panel, first_cells, plots

# Logits, and rows and columns of the grid: of more logits it is coarser, to take no second.
FEW, MANY = 1 << 15, 1 << 17
DENSE, COARSE = (15, 27), (11, 21)
# Of gamma; further if the best one is.
LOWEST, HIGHEST = -0.9, 6.0
TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20)
WIDTH, HEIGHT = 560.0, 340.0


def landscape(group: Group) -> Panel | None:
    """NLL of the first seed's validation predictions of cross entropy, or of the first method."""
    found = _chosen(group)
    if found is None:
        return None
    name, cell, val = found
    part, step = sampled(val, MANY)
    with warnings.catch_warnings():
        # Small validation sets warn; the picture shows how flat the score is.
        warnings.simplefilter("ignore", UserWarning)
        try:
            fitted, plain = FocalTemperatureScaling.fit(part), TemperatureScaling.fit(part)
        except ValueError:
            return None
    figure, words = _draw(part, fitted, plain, name)
    many = "" if step == 1 else f" every {step}-th of"
    about = (
        f"NLL of {name}, seed {cell.seed}, on{many} the {len(val):,} val examples, for each "
        "temperature T and gamma: the stronger the colour, the higher. Where it is as low all "
        "along the line of the best T, gamma adds nothing to a temperature."
    )
    shapes = {
        "heat": "higher NLL",
        "path": "best T for each gamma",
        "guide": "gamma = 0, temperature scaling",
        "spot": "least NLL",
        "spot hollow": "least with gamma = 0",
    }
    html = plots([plot(name, figure, note=words)]) + key(shapes)
    return Panel("landscape", "Temperature and gamma", about, html, wide=False)


def _chosen(group: Group) -> tuple[str, SavedCell, Predictions] | None:
    """Cross entropy where it is there; with two classes the two numbers do the same."""
    cells = first_cells(group)

    def plain(cell: SavedCell) -> bool:
        identity = (cell.record or {}).get("identity") or {}
        return bool(identity.get("method.name") == "cross_entropy")

    for name in sorted(cells, key=lambda name: not plain(cells[name])):
        val = cells[name].val
        if val is not None:
            return None if val.classes < 3 else (name, cells[name], val)
    return None


def _draw(
    val: Predictions, fitted: FocalTemperatureScaling, plain: TemperatureScaling, name: str
) -> tuple[str, str]:
    """The chart, and what it shows in words."""
    rows, columns = DENSE if len(val) * val.classes <= FEW else COARSE
    ends = sorted((fitted.temperature, plain.temperature))
    temperatures = np.geomspace(ends[0] / 2, ends[1] * 2.5, columns)
    gammas = np.linspace(min(LOWEST, fitted.gamma), max(HIGHEST, fitted.gamma), rows)
    values = focal_landscape(val, gammas=gammas.tolist(), temperatures=temperatures.tolist())
    least = _score(val, fitted.gamma, fitted.temperature)
    # Far from the ridge the score grows without end, and would hide where it is flat.
    rise = SHOWN * (float(values.min(1).max()) - least)
    axes = Axes(
        Scale(float(temperatures[0]), float(temperatures[-1]), 46, WIDTH - 12, log=True),
        Scale(float(gammas[0]), float(gammas[-1]), HEIGHT - 38, 24),
    )

    def tip(i: int, j: int) -> str:
        return f"T {temperatures[j]:.3g}, gamma {gammas[i]:.2f}: NLL {values[i, j]:.4f}"

    best = f"{least:.4f} at T = {fitted.temperature:.3g}, gamma = {fitted.gamma:.3g}"
    scaled = _score(val, 0.0, plain.temperature)
    second = f"{scaled:.4f} at T = {plain.temperature:.3g}, gamma = 0"
    places = {"x": temperatures.tolist(), "y": gammas.tolist()}
    top = least + max(rise, 0.02 * abs(least), 1e-6)
    ticks = [t for t in TICKS if temperatures[0] <= t <= temperatures[-1]]
    lowest = ridge(temperatures, values).tolist()
    level = axes.x.start, axes.y(0), axes.x.end, axes.y(0)
    parts = [
        axes.draw(x_name="temperature T", y_name="gamma", x_ticks=ticks or None),
        surface(axes, values.tolist(), **places, low=least, high=top, tip=tip),
        *(line(*level, role=role) for role in ("halo", "guide")),
        *(curve(axes, lowest, gammas.tolist(), role=role) for role in ("halo", "path")),
        _spot(axes, plain.temperature, 0.0, f"NLL {second}", "spot hollow"),
        _spot(axes, fitted.temperature, fitted.gamma, f"NLL {best}", "spot"),
    ]
    words = f"least NLL {best}; {second}"
    title = f"NLL of {name} over temperature and gamma"
    return chart(*parts, width=WIDTH, height=HEIGHT, title=title, about=words), words


def _score(val: Predictions, gamma: float, temperature: float) -> float:
    return float(focal_landscape(val, gammas=[gamma], temperatures=[temperature])[0, 0])


def _spot(axes: Axes, x: float, y: float, tip: str, role: str) -> str:
    return mark(element("circle", cx=axes.x(x), cy=axes.y(y), r=5, class_=role), tip=tip)
