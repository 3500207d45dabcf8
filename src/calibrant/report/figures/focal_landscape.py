"""A criterion over the two parameters of focal temperature scaling: its grid, and a figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float64

from calibrant.calibrators.focal_temperature import (
    CRITERIA,
    Criterion,
    FocalTemperatureScaling,
    focal_landscape,
)
from calibrant.predictions import Predictions
from calibrant.report.figures import style as look

if TYPE_CHECKING:
    import matplotlib.figure

POINTS = 33
LEVELS = 25
TICKS = (0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20)
# Levels are shown up to this many times the rise along the ridge: far from it the criterion grows
# without bound, and would hide where it is flat.
SHOWN = 2.0
# The lowest and the highest gamma of a grid.
GAMMAS = (-0.9, 6.0)


@dataclass(frozen=True)
class Landscape:
    """A criterion on a grid of (gamma, T), its lowest value, and the best parameters by NLL.

    Values above `top` need not be told apart.
    """

    fitted: FocalTemperatureScaling
    gammas: Float64[np.ndarray, " g"]
    temperatures: Float64[np.ndarray, " t"]
    values: Float64[np.ndarray, "g t"]
    lowest: float
    top: float

    @property
    def ridge(self) -> Float64[np.ndarray, " g"]:
        """Best temperature of each gamma: the vertex of the parabola through the lowest points."""
        best = np.clip(self.values.argmin(1), 1, self.values.shape[1] - 2)
        at = np.arange(len(self.values))
        left, middle, right = (self.values[at, best + shift] for shift in (-1, 0, 1))
        bend = left - 2 * middle + right
        offset = np.where(bend > 0, (left - right) / (2 * np.where(bend > 0, bend, 1)), 0)
        steps = np.arange(len(self.temperatures))
        found = np.interp(best + np.clip(offset, -1, 1), steps, np.log(self.temperatures))
        return np.asarray(np.exp(found))


def landscape_of(
    predictions: Predictions,
    fitted: FocalTemperatureScaling,
    gammas: Sequence[float],
    temperatures: Sequence[float],
    *,
    criterion: Criterion = "nll",
) -> Landscape:
    """Evaluate a criterion at every temperature and gamma."""
    values = focal_landscape(
        predictions, criterion=criterion, gammas=list(gammas), temperatures=list(temperatures)
    )
    lowest = float(values.min())
    if criterion == "nll":
        best = focal_landscape(
            predictions, gammas=[fitted.gamma], temperatures=[fitted.temperature]
        )
        lowest = min(lowest, float(best[0, 0]))
    rise = SHOWN * (float(values.min(1).max()) - lowest)
    top = lowest + max(rise, 0.02 * abs(lowest), 1e-6)
    return Landscape(fitted, np.asarray(gammas), np.asarray(temperatures), values, lowest, top)


def focal_landscape_figure(
    predictions: Predictions,
    *,
    criterion: Criterion = "nll",
    gammas: Sequence[float] | None = None,
    temperatures: Sequence[float] | None = None,
    title: str | None = None,
) -> "matplotlib.figure.Figure":
    """Draw a criterion over (gamma, T), with the best T of each gamma and the fitted parameters.

    The white line is the best temperature for each gamma. If it is nearly straight and the
    criterion nearly flat along it, gamma adds little to a temperature. The dotted line at gamma 0
    is temperature scaling.

    Args:
        predictions: the examples.
        criterion: one of "nll", "brier", "ece", "adaptive_ece".
        gammas: rows of the grid; -0.9 to 6 if not given.
        temperatures: columns; around the fitted temperature if not given.
    """
    fitted = FocalTemperatureScaling.fit(predictions)
    if temperatures is None:
        middle = fitted.temperature
        temperatures = np.geomspace(middle / 2.5, middle * 4, POINTS).tolist()
    if gammas is None:
        gammas = np.linspace(*GAMMAS, POINTS).tolist()
    found = landscape_of(
        predictions, fitted, sorted(gammas), sorted(temperatures), criterion=criterion
    )
    levels = found.lowest + (found.top - found.lowest) * np.linspace(0, 1, LEVELS) ** 2
    figure, (axes,) = look.new_row(6.4, 4.6, 1)
    grid = found.temperatures, found.gammas, found.values.clip(max=found.top)
    drawn = axes.contourf(*grid, levels, cmap="viridis_r")
    axes.contour(*grid, levels[::4], colors="white", linewidths=0.4)
    marks = levels[:: (LEVELS - 1) // 6]
    bar = figure.colorbar(drawn, ax=axes, pad=0.02, ticks=marks)
    bar.ax.set_yticklabels([f"{mark:.4f}" for mark in marks], fontsize=8)
    bar.set_label(f"{criterion}; darkest: at least {found.top:.3g}", fontsize=9)
    label = "best T for each gamma"
    axes.plot(found.ridge, found.gammas, color="white", linewidth=1.2, label=label)
    axes.axhline(0, color="white", linewidth=0.8, linestyle=":")
    best = axes.plot(fitted.temperature, fitted.gamma, "o", color="#d62728", label="lowest nll")
    best[0].set_markeredgecolor("white")
    axes.set_xscale("log")
    low, high = found.temperatures[0], found.temperatures[-1]
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set(xlabel="temperature T", ylabel="gamma (0 is temperature scaling)")
    axes.set_ylim(found.gammas[0], found.gammas[-1])
    shade = {"facecolor": "#444444", "labelcolor": "white", "framealpha": 0.6}
    axes.legend(loc="upper left", fontsize=8, **shade)
    where = f"lowest nll at T = {fitted.temperature:.2f}, gamma = {fitted.gamma:.2f}"
    change = f"{criterion} {found.lowest:.4f} at best, {CRITERIA[criterion](predictions):.4f}"
    look.write_title(axes, title, f"{where}; {change} before")
    return figure
