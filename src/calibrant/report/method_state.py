"""Method state along a training: gamma by confidence, multipliers by class."""

import math
from dataclasses import dataclass

from calibrant.report.readings import Rows, column, number, numbers
from calibrant.report.reliability_points import FEW

GAMMA_COLUMNS = ("gamma_q05", "gamma_q50", "gamma_q95", "gamma_right", "count_right", "gamma_wrong")
# Column of the multipliers of each class, and its name: of CALS-ALM and of CALS-HR.
MULTIPLIERS = {"multipliers": "multiplier", "alpha": "penalty weight"}


@dataclass(frozen=True)
class GammaState:
    """Gamma of the training examples: 5, 50 and 95 % quantiles by epoch, mean and std of the last.

    `by_confidence` is the mean gamma of "right" and "wrong" examples in the last epoch, in bins of
    confidence of equal width; NaN in bins with fewer than 10 examples.
    """

    low: list[float]
    median: list[float]
    high: list[float]
    by_confidence: dict[str, list[float]]
    mean: float
    std: float

    @property
    def highest(self) -> float:
        """The largest number to draw."""
        held = [*self.high, *(v for means in self.by_confidence.values() for v in means)]
        return max((v for v in held if math.isfinite(v)), default=0.0)


def gamma_state(history: Rows) -> GammaState | None:
    """Gamma along a training; None if its method has none."""
    if not history or any(name not in row for row in history for name in GAMMA_COLUMNS):
        return None
    last, by_confidence = history[-1], {}
    for part in ("right", "wrong"):
        means, counts = numbers(last[f"gamma_{part}"]), numbers(last.get(f"count_{part}"))
        counts = counts or [math.inf] * len(means)
        by_confidence[part] = [
            mean if count >= FEW else math.nan for mean, count in zip(means, counts, strict=False)
        ]
    low, median, high = (column(history, name) for name in GAMMA_COLUMNS[:3])
    mean, std = (number(last.get(f"gamma_{name}")) for name in ("mean", "std"))
    return GammaState(low, median, high, by_confidence, mean, std)


@dataclass(frozen=True)
class MultiplierState:
    """Multipliers of the classes: a list for each epoch, and what each class has in the last one.

    `last` holds the multiplier and, of CALS-ALM, rho.
    """

    name: str
    along: list[list[float]]
    last: dict[str, list[float]]

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.along[-1])


def multiplier_state(history: Rows) -> MultiplierState | None:
    """Multipliers along a training; None if its method has none."""
    found = [name for name in MULTIPLIERS if history and numbers(history[-1].get(name))]
    if not found:
        return None
    along, name = [numbers(row.get(found[0])) for row in history], MULTIPLIERS[found[0]]
    last, rho = {name: along[-1]}, numbers(history[-1].get("rho"))
    if len(rho) == len(along[-1]):
        last["rho"] = rho
    return MultiplierState(name, along, last)
