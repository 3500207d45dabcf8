"""A criterion over the two parameters of focal temperature scaling."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from calibrant.calibrators.focal_temperature import (
    Criterion,
    FocalTemperatureScaling,
    focal_landscape,
)
from calibrant.predictions import Predictions

# Levels are shown up to this many times the rise along the ridge: far from it the criterion grows
# without bound, and would hide where it is flat.
SHOWN = 2.0
LOWEST_GAMMA, HIGHEST_GAMMA = -0.9, 6.0


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
        """Best temperature of each gamma."""
        return ridge(self.temperatures, self.values)


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


def ridge(
    temperatures: Float64[np.ndarray, " t"], values: Float64[np.ndarray, "g t"]
) -> Float64[np.ndarray, " g"]:
    """Best temperature of each row: the vertex of the parabola through the lowest three points."""
    best = np.clip(values.argmin(1), 1, values.shape[1] - 2)
    at = np.arange(len(values))
    left, middle, right = (values[at, best + shift] for shift in (-1, 0, 1))
    bend = left - 2 * middle + right
    offset = np.where(bend > 0, (left - right) / (2 * np.where(bend > 0, bend, 1)), 0)
    steps = np.arange(len(temperatures))
    found = np.interp(best + np.clip(offset, -1, 1), steps, np.log(temperatures))
    return np.asarray(np.exp(found))
