"""How a criterion depends on the two numbers of focal temperature scaling."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from calibrant.calibrators.focal_temperature import (
    CRITERIA,
    Criterion,
    FocalTemperatureScaling,
    focal_landscape,
)
from calibrant.predictions import Predictions
from calibrant.report.panels import dress, head, new_figure

if TYPE_CHECKING:
    import matplotlib.figure

# Levels are drawn up to this many times the rise along the ridge, closer together at the bottom.
SHOWN = 2.0
POINTS = 33
LEVELS = 25


def focal_landscape_figure(
    predictions: Predictions,
    *,
    criterion: Criterion = "nll",
    gammas: Sequence[float] | None = None,
    temperatures: Sequence[float] | None = None,
    title: str | None = None,
) -> "matplotlib.figure.Figure":
    """Draw the criterion over (gamma, T): levels, the ridge of best T, and the fitted points.

    The line marks the best temperature for each gamma; that it is nearly straight and the
    criterion nearly flat along it says how little gamma adds to a temperature. The horizontal line
    at gamma 0 is temperature scaling.

    Args:
        predictions: the examples.
        criterion: one of "nll", "brier", "ece", "adaptive_ece".
        gammas: rows of the grid; -0.9 to 6 if not given.
        temperatures: columns; around the fitted temperature if not given.
        title: above the figure.
    """
    fitted = FocalTemperatureScaling.fit(predictions)
    rows = np.asarray(np.linspace(-0.9, 6, POINTS) if gammas is None else sorted(gammas))
    if temperatures is None:
        middle = fitted.temperature
        temperatures = np.geomspace(middle / 2.5, middle * 4, POINTS).tolist()
    columns = np.asarray(sorted(temperatures))
    values = focal_landscape(
        predictions, criterion=criterion, gammas=rows.tolist(), temperatures=columns.tolist()
    )
    lowest, along = float(values.min()), values.min(1)
    before = CRITERIA[criterion](predictions)
    # Far from the ridge the criterion grows without end, and would hide where it is flat.
    top = lowest + max(SHOWN * (float(along.max()) - lowest), 0.02 * abs(lowest), 1e-6)
    levels = lowest + (top - lowest) * np.linspace(0, 1, LEVELS) ** 2
    figure = new_figure(6.4, 4.6)
    axes = figure.add_subplot()
    dress(axes)
    drawn = axes.contourf(columns, rows, np.minimum(values, top), levels, cmap="viridis_r")
    axes.contour(
        columns, rows, np.minimum(values, top), levels[::4], colors="white", linewidths=0.4
    )
    marks = levels[:: (LEVELS - 1) // 6]
    bar = figure.colorbar(drawn, ax=axes, pad=0.02, ticks=marks)
    bar.ax.set_yticklabels([f"{mark:.4f}" for mark in marks], fontsize=8)
    bar.set_label(f"{criterion}; darkest: at least {top:.3g}", fontsize=9)
    axes.plot(
        ridge(columns, values), rows, color="white", linewidth=1.2, label="best T for each gamma"
    )
    axes.axhline(0, color="white", linewidth=0.8, linestyle=":")
    axes.plot(
        fitted.temperature,
        fitted.gamma,
        "o",
        color="#d62728",
        markeredgecolor="white",
        label="least nll",
    )
    axes.set_xscale("log")
    ticks = [
        tick for tick in (0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20) if columns[0] <= tick <= columns[-1]
    ]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("temperature T")
    axes.set_ylabel("gamma (0 is temperature scaling)")
    axes.set_ylim(rows[0], rows[-1])
    axes.legend(
        loc="upper left", fontsize=8, facecolor="#444444", labelcolor="white", framealpha=0.6
    )
    facts = (
        f"least nll at T = {fitted.temperature:.2f}, gamma = {fitted.gamma:.2f}; "
        f"{criterion} {lowest:.4f} at best, {before:.4f} before"
    )
    head(axes, title, facts)
    return figure


def ridge(temperatures: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Best temperature of each row: the vertex of the parabola through the lowest three points."""
    best = np.clip(values.argmin(1), 1, values.shape[1] - 2)
    at = np.arange(len(values))
    left, middle, right = (values[at, best + shift] for shift in (-1, 0, 1))
    bend = left - 2 * middle + right
    offset = np.where(bend > 0, (left - right) / (2 * np.where(bend > 0, bend, 1)), 0)
    steps = np.arange(len(temperatures))
    found = np.interp(best + np.clip(offset, -1, 1), steps, np.log(temperatures))
    return np.asarray(np.exp(found))
