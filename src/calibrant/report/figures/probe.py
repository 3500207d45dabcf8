"""What a probe read along a training: calibration error beside curvature, and margins."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.report.figures.probe_axes import (
    by_training,
    finite,
    fit_scale,
    step_axis,
    training_grid,
)
from calibrant.report.figures.style import INK, OVER, SERIES, SOFT, UNDER, legend_below, style_axes
from calibrant.report.probe_readings import (
    ECE,
    EDGE,
    MARGIN_BANDS,
    MARGINS,
    SHARPNESS,
    error_band,
    steps_of,
    without_far_edges,
)
from calibrant.report.readings import Rows, column, has_numbers

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

GREEN, PINK, SKY, AMBER = SERIES[2:6]
DASHES = (0, (4, 2.4))
HUES = {"train_ece": OVER, "test_ece": AMBER, "train_log_tail": OVER, "test_log_tail": AMBER}
HUES |= {"val_ece": AMBER, "val_log_tail": AMBER}
HUES |= {"hessian": SKY, "gauss_newton": UNDER, "batch_sharpness": GREEN}
HUES |= {"margin_50": UNDER, "margin_0": PINK}
BAND_HUES = ("#d3e6f1", "#8fc1de")
TAILS = {
    "train_log_tail": "log Q, training",
    "val_log_tail": "log Q, validation",
    "test_log_tail": "log Q, test",
}
ALL_MARGINS = ("margin_0", "margin_5", "margin_25", "margin_50", "margin_75", "margin_95")


def sharpness_figure(
    rows: Rows | Mapping[str, Rows], *, title: str = ""
) -> "matplotlib.figure.Figure":
    """Draw calibration error and sharpness along training.

    ECE has the left scale, sharpness the right one; either is logarithmic where it spans more than
    one and a half powers of ten. The dashed line is the edge of stability: above it, gradient
    descent with this learning rate diverges on a quadratic. It is left out where it is a hundred
    times above all sharpness. The band around batch sharpness is its standard error.

    Args:
        rows: of a probe; several trainings by name get axes of their own with the same scales.
        title: above the figure.
    """
    runs = without_far_edges(by_training(rows, (*ECE, *SHARPNESS)))
    figure, grid = training_grid(runs, 1, title)
    errors = finite(runs.values(), ECE)
    curves = finite(runs.values(), (*SHARPNESS, "edge"))
    handles: dict[str, Any] = {}
    for (axes,), each in zip(grid, runs.values(), strict=True):
        step_axis(axes, each)
        if errors:
            handles |= _draw(axes, each, ECE)
            fit_scale(axes, "y", errors, zero=True)
            axes.set_ylabel("ECE", color=OVER)
        if curves:
            side = _right_side(axes) if errors else axes
            handles |= _draw(side, each, SHARPNESS) | _draw_edge(side, each)
            fit_scale(side, "y", curves, zero=True)
            side.set_ylabel("sharpness", color=UNDER)
    legend_below(figure, [*handles.values()], [*handles], columns=min(3, len(handles)))
    return figure


def margin_figure(
    rows: Rows | Mapping[str, Rows], *, title: str = ""
) -> "matplotlib.figure.Figure":
    r"""Draw the margins of the training examples along training, and their tail.

    Above, the median and the smallest margin, with bands of quantiles; below the dashed line
    predictions are wrong. Beneath, log Q with $Q = \mathrm{mean}\, e^{-m}$, which bounds
    calibration error and curvature: it follows the smallest margins, not the median.

    Args:
        rows: of a probe; several trainings by name get axes of their own with the same scales.
        title: above the figure.
    """
    runs = by_training(rows, (*ALL_MARGINS, *TAILS))
    figure, grid = training_grid(runs, 2, title)
    handles: dict[str, Any] = {}
    for (upper, lower), each in zip(grid, runs.values(), strict=True):
        handles |= _draw_margins(upper, each) | _draw(lower, each, TAILS)
        for axes, parts, name in ((upper, ALL_MARGINS, "margin"), (lower, TAILS, "log Q")):
            fit_scale(axes, "y", finite(runs.values(), parts), linear=True)
            axes.set_ylabel(name, color=INK)
        lower.locator_params(axis="y", nbins=4)
        step_axis(lower, each)
        upper.sharex(lower)
        upper.tick_params(labelbottom=False)
    legend_below(figure, [*handles.values()], [*handles], columns=min(3, len(handles)))
    return figure


def _right_side(axes: "matplotlib.axes.Axes") -> "matplotlib.axes.Axes":
    """A second scale, on the right."""
    side = axes.twinx()
    style_axes(side)
    side.grid(visible=False)
    side.spines[:].set_visible(False)
    side.spines["right"].set(visible=True, color=SOFT, linewidth=0.8)
    return side


def _draw(axes: "matplotlib.axes.Axes", rows: Rows, labels: Mapping[str, str]) -> dict[str, Any]:
    """Lines of some columns, by label; nothing for those without a number."""
    steps, drawn = steps_of(rows), {}
    for name, label in labels.items():
        values, band, hue = column(rows, name), error_band(rows, name), HUES[name]
        if has_numbers(values):
            mark = "o" if len(rows) < 30 else ""
            (drawn[label],) = axes.plot(steps, values, color=hue, marker=mark, markersize=3.5)
        if band is not None:
            axes.fill_between(steps, *band, color=hue, alpha=0.2, linewidth=0)
    return drawn


def _draw_edge(axes: "matplotlib.axes.Axes", rows: Rows) -> dict[str, Any]:
    """The edge of stability, which moves with the learning rate."""
    steps, wide = _widened(rows)
    edge = column(wide, "edge")
    if not has_numbers(edge):
        return {}
    (line,) = axes.plot(steps, edge, color=INK, linewidth=1.15, linestyle=DASHES)
    return {EDGE: line}


def _draw_margins(axes: "matplotlib.axes.Axes", rows: Rows) -> dict[str, Any]:
    """Bands, the median, the smallest one, and the line between right and wrong."""
    steps, wide = _widened(rows)
    drawn = {}
    for (label, (below, above)), hue in zip(MARGIN_BANDS.items(), BAND_HUES, strict=True):
        low, high = column(wide, below), column(wide, above)
        if np.isfinite([low, high]).all(0).any():
            drawn[label] = axes.fill_between(steps, low, high, color=hue, linewidth=0)
    drawn |= _draw(axes, rows, MARGINS)
    axes.axhline(0, color=INK, linewidth=1, linestyle=DASHES)
    return drawn


def _widened(rows: Rows) -> tuple[list[float], Rows]:
    """Steps and rows; a single reading becomes one step wide, or its bands would not be seen."""
    steps = steps_of(rows)
    return ([steps[0] - 0.5, steps[0] + 0.5], [*rows] * 2) if len(rows) == 1 else (steps, rows)
