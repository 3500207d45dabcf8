"""What a probe read along a training: columns with their names, steps, pairs, correlations."""

import math
from collections.abc import Mapping
from typing import Any

from calibrant.curvature.correlation import LEAST, Kind, correlation
from calibrant.metrics import Interval
from calibrant.report.readings import Rows, column, has_numbers

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


def steps_of(rows: Rows) -> list[float]:
    """The step of each reading, or its number where rows have no step."""
    steps = column(rows, "step")
    return steps if all(map(math.isfinite, steps)) else [float(at) for at in range(len(rows))]


def without_far_edges(runs: Mapping[str, Rows]) -> dict[str, Rows]:
    """The readings of trainings, without edges of stability far above the highest sharpness."""
    held = [v for rows in runs.values() for name in SHARPNESS for v in column(rows, name)]
    limit = EDGE_WITHIN * max((v for v in held if math.isfinite(v)), default=0.0)
    return {name: [_within(row, limit) for row in rows] for name, rows in runs.items()}


def _within(row: Mapping[str, Any], limit: float) -> Mapping[str, Any]:
    far = isinstance(row.get("edge"), int | float) and row["edge"] > limit
    return {**row, "edge": math.nan} if far else row


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
