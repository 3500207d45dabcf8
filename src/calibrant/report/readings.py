"""Numbers that a training logged, shared by panels and figures: columns, probe, method state.

Whatever is not a number is NaN.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.curvature.correlation import LEAST, Kind, correlation
from calibrant.metrics import Interval
from calibrant.report.reliability_points import FEW

Rows = Sequence[Mapping[str, Any]]

ECE = {"train_ece": "ECE, training", "val_ece": "ECE, validation", "test_ece": "ECE, test"}
SHARPNESS = {
    "hessian": "Hessian",
    "gauss_newton": "Gauss-Newton",
    "batch_sharpness": "batch sharpness",
}
MARGINS = {"margin_50": "median margin", "margin_0": "smallest margin"}
MARGIN_BANDS = {
    "5 % to 95 % of margins": ("margin_5", "margin_95"),
    "25 % to 75 % of margins": ("margin_25", "margin_75"),
}
EDGE = "edge of stability"
KINDS: dict[Kind, str] = {"pearson": "Pearson", "spearman": "Spearman"}
# An edge further above all sharpness than this would only press the curves together.
EDGE_WITHIN = 100
GAMMA_COLUMNS = ("gamma_q05", "gamma_q50", "gamma_q95", "gamma_right", "count_right", "gamma_wrong")
# Column of the multipliers of each class, and its name: of CALS-ALM and of CALS-HR.
MULTIPLIERS = {"multipliers": "multiplier", "alpha": "penalty weight"}


def number(value: Any) -> float:
    """A number of a file; NaN for everything else."""
    return float(value) if isinstance(value, int | float) else math.nan


def numbers(value: Any) -> list[float]:
    """A list of numbers of a file; empty for everything else."""
    return [number(each) for each in value] if isinstance(value, list) else []


def column(rows: Rows, name: str) -> list[float]:
    """One number of each row."""
    return [number(row.get(name)) for row in rows]


def has_numbers(values: Iterable[float]) -> bool:
    """Whether there is something to draw."""
    return any(map(math.isfinite, values))


def finite(runs: Iterable[Rows], columns: Iterable[str]) -> list[float]:
    """All finite numbers in some columns of several trainings."""
    names = list(columns)
    held = [value for rows in runs for name in names for value in column(rows, name)]
    return [value for value in held if math.isfinite(value)]


def steps_of(rows: Rows) -> list[float]:
    """The step of each reading, or its number where rows have no step."""
    steps = column(rows, "step")
    return steps if all(map(math.isfinite, steps)) else [float(at) for at in range(len(rows))]


def without_far_edges(runs: Mapping[str, Rows]) -> dict[str, Rows]:
    """The readings of trainings, without edges of stability far above the highest sharpness."""
    limit, gone = EDGE_WITHIN * max(finite(runs.values(), SHARPNESS), default=0.0), {"edge": None}
    return {
        name: [{**row, **gone} if number(row.get("edge")) > limit else row for row in rows]
        for name, rows in runs.items()
    }


def error_band(rows: Rows, name: str) -> tuple[list[float], list[float]] | None:
    """One standard error below and above a column; None where the probe gives none."""
    values, errors = column(rows, name), column(rows, f"{name}_error")
    if not has_numbers(errors):
        return None
    pairs = list(zip(values, errors, strict=True))
    return [max(0.0, v - e) for v, e in pairs], [v + e for v, e in pairs]


def pairs_of(rows: Rows, x: str, y: str) -> tuple[list[int], list[float], list[float]]:
    """Readings that have both columns: their places, and the numbers."""
    xs, ys = column(rows, x), column(rows, y)
    both = [at for at in range(len(rows)) if math.isfinite(xs[at]) and math.isfinite(ys[at])]
    return both, [xs[at] for at in both], [ys[at] for at in both]


def correlation_text(rows: Rows, x: str, y: str, names: Mapping[Kind, str] = KINDS) -> str:
    """Both correlations of a training, with their intervals."""
    _, xs, ys = pairs_of(rows, x, y)
    if len(xs) < LEAST:
        return f"fewer than {LEAST} readings"
    found = {word: correlation(xs, ys, kind=kind) for kind, word in names.items()}
    return ", ".join(f"{word} {interval_text(each)}" for word, each in found.items())


def interval_text(interval: Interval) -> str:
    """A correlation with its interval; "none" if it is not defined."""
    if math.isnan(interval.value):
        return "none"
    if math.isnan(interval.low):
        return f"{interval.value:.2f}"
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


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
        return max(filter(math.isfinite, held), default=0.0)


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
