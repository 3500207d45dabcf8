"""What a probe read along a training: calibration beside curvature, and margins."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.report.panels import INK, OVER, SERIES, SOFT, UNDER, dress, legend_below
from calibrant.report.probe_panels import (
    Rows,
    along,
    array_of,
    fit,
    named,
    numbers,
    places,
    steps_of,
)
from calibrant.shapes import Values

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

Parts = dict[str, tuple[str, str]]

GREEN, PINK, SKY, AMBER = SERIES[2:6]
DASHES = (0, (4, 2.4))
# Label and colour of each column.
ECE: Parts = {"train_ece": ("ECE, training", OVER), "test_ece": ("ECE, test", AMBER)}
ECE = {**ECE, "val_ece": ("ECE, validation", AMBER)}
SHARPNESS: Parts = {
    "hessian": ("Hessian", SKY),
    "gauss_newton": ("Gauss-Newton", UNDER),
    "batch_sharpness": ("batch sharpness", GREEN),
}
TAILS: Parts = {
    "train_log_tail": ("log Q, training", OVER),
    "test_log_tail": ("log Q, test", AMBER),
    "val_log_tail": ("log Q, validation", AMBER),
}
BANDS = {
    "middle nine tenths": ("margin_5", "margin_95", "#d3e6f1"),
    "middle half": ("margin_25", "margin_75", "#8fc1de"),
}
MARGINS = ("margin_0", "margin_5", "margin_25", "margin_50", "margin_75", "margin_95")
# An edge further above all sharpness than this would only press the curves together.
EDGE_WITHIN = 100


def sharpness_figure(
    rows: Rows | Mapping[str, Rows], *, title: str = ""
) -> "matplotlib.figure.Figure":
    """Draw calibration error and sharpness along training, over one another.

    ECE stands on the left scale, sharpness on the right one, each logarithmic where it covers more
    than one and a half powers of ten. The dashed line is the edge of stability, beyond which plain
    descent with this learning rate diverges on a quadratic; it is left out where it is a
    hundred times above all that was read. The shade about batch sharpness is its standard error.

    Args:
        rows: of a probe; several trainings by name are drawn in panels with the same scales.
        title: above the figure.
    """
    runs = named(rows, (*ECE, *SHARPNESS))
    highest = numbers(runs.values(), SHARPNESS).max(initial=0)
    runs = {label: _near(each, EDGE_WITHIN * highest) for label, each in runs.items()}
    figure, grid = places(runs, 1, title)
    errors = numbers(runs.values(), ECE)
    curves = numbers(runs.values(), (*SHARPNESS, "edge"))
    handles: dict[str, Any] = {}
    for (axes,), each in zip(grid, runs.values(), strict=True):
        along(axes, each)
        if errors.size:
            handles |= _draw(axes, each, ECE)
            fit(axes, "y", errors, zero=True)
            axes.set_ylabel("ECE", color=OVER)
        if curves.size:
            side = _right_side(axes) if errors.size else axes
            handles |= _draw(side, each, SHARPNESS) | _draw_edge(side, each)
            fit(side, "y", curves, zero=True)
            side.set_ylabel("sharpness", color=UNDER)
    legend_below(figure, [*handles.values()], [*handles], columns=min(3, len(handles)))
    return figure


def margin_figure(
    rows: Rows | Mapping[str, Rows], *, title: str = ""
) -> "matplotlib.figure.Figure":
    r"""Draw how the margins of the training examples are spread along training, and their tail.

    Above, the median and the smallest margin, and the middle half and nine tenths of all; below
    the dashed line answers are wrong. Beneath, log Q with $Q = \mathrm{mean}\, e^{-m}$, which
    bounds calibration error and curvature: it follows the smallest margins, not the median.

    Args:
        rows: of a probe; several trainings by name are drawn in panels with the same scales.
        title: above the figure.
    """
    runs = named(rows, (*MARGINS, *TAILS))
    figure, grid = places(runs, 2, title)
    handles: dict[str, Any] = {}
    for (upper, lower), each in zip(grid, runs.values(), strict=True):
        handles |= _draw_margins(upper, each) | _draw(lower, each, TAILS)
        for axes, parts, name in ((upper, MARGINS, "margin"), (lower, TAILS, "log Q")):
            fit(axes, "y", numbers(runs.values(), parts), plain=True)
            axes.set_ylabel(name, color=INK)
        lower.locator_params(axis="y", nbins=4)
        along(lower, each)
        upper.sharex(lower)
        upper.tick_params(labelbottom=False)
    legend_below(figure, [*handles.values()], [*handles], columns=min(3, len(handles)))
    return figure


def _near(rows: Rows, limit: float) -> Rows:
    """The rows, without edges above a limit."""
    return [{**row, "edge": np.nan} if row.get("edge", 0) > limit else row for row in rows]


def _right_side(axes: "matplotlib.axes.Axes") -> "matplotlib.axes.Axes":
    """A second scale, on the right."""
    side = axes.twinx()
    dress(side)
    side.grid(visible=False)
    side.spines[:].set_visible(False)
    side.spines["right"].set(visible=True, color=SOFT, linewidth=0.8)
    return side


def _draw(axes: "matplotlib.axes.Axes", rows: Rows, parts: Parts) -> dict[str, Any]:
    """Lines of some columns, by label; nothing for those without a number."""
    steps, drawn = steps_of(rows), {}
    for name, (label, hue) in parts.items():
        values, error = array_of(rows, name), array_of(rows, f"{name}_error")
        if np.isfinite(values).any():
            mark = "o" if len(rows) < 30 else ""
            (drawn[label],) = axes.plot(steps, values, color=hue, marker=mark, markersize=3.5)
        if np.isfinite(error).any():
            ends = values - error, values + error
            axes.fill_between(steps, *ends, color=hue, alpha=0.2, linewidth=0)
    return drawn


def _draw_edge(axes: "matplotlib.axes.Axes", rows: Rows) -> dict[str, Any]:
    """The edge of stability, which moves with the learning rate."""
    steps, wide = _widened(rows)
    edge = array_of(wide, "edge")
    if not np.isfinite(edge).any():
        return {}
    (line,) = axes.plot(steps, edge, color=INK, linewidth=1.15, linestyle=DASHES)
    return {"edge of stability": line}


def _draw_margins(axes: "matplotlib.axes.Axes", rows: Rows) -> dict[str, Any]:
    """Bands, the median, the smallest one, and the line between right and wrong."""
    steps, wide = _widened(rows)
    drawn = {}
    for label, (low, high, hue) in BANDS.items():
        ends = array_of(wide, low), array_of(wide, high)
        if np.isfinite(ends).all(0).any():
            drawn[label] = axes.fill_between(steps, *ends, color=hue, linewidth=0)
    drawn |= _draw(axes, rows, {"margin_50": ("median", UNDER), "margin_0": ("smallest", PINK)})
    axes.axhline(0, color=INK, linewidth=1, linestyle=DASHES)
    return drawn


def _widened(rows: Rows) -> tuple[Values, Rows]:
    """Steps and rows; a single reading becomes one step wide, or its bands would not be seen."""
    steps = steps_of(rows)
    return (steps + np.array([-0.5, 0.5]), [*rows] * 2) if len(rows) == 1 else (steps, rows)
