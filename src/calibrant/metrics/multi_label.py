"""Metrics of several labels: of each, their mean (macro), and of all entries together (micro)."""

import math
from collections.abc import Sequence

import numpy as np

from calibrant.metrics.metric import Metric, MetricFunction
from calibrant.metrics.registry import descriptor
from calibrant.multi_label import MultiLabel
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import warn
from calibrant.shapes import Values


def per_label(metric: MetricFunction, multi: MultiLabel) -> dict[str, float]:
    """A metric of two classes for each label; NaN where it is not defined.

    Examples:
        >>> from calibrant.metrics import binary_brier
        >>> m = MultiLabel.from_probs([[0.5, 0.9], [0.5, 0.2]], [[1, 1], [0, -1]])
        >>> {name: round(value, 4) for name, value in per_label(binary_brier, m).items()}
        {'0': 0.25, '1': 0.01}
    """
    return {
        name: math.nan if each is None else float(metric(each))
        for name, each in label_predictions(multi).items()
    }


def macro(metric: MetricFunction, multi: MultiLabel, *, weighted: bool = False) -> float:
    """Mean of a metric over labels, weighted by their number of positives if `weighted`.

    Labels in which it is not defined are left out, with a warning.
    """
    values = np.array(list(per_label(metric, multi).values()))
    used = usable(values, descriptor(metric))
    _warn_left_out(metric, multi, used)
    shares = np.ones(multi.size)
    if weighted:
        shares = (multi.labels == 1).double().numpy().T @ multi.example_weights
    shares = shares * used
    return float(np.average(values[used], weights=shares[used])) if shares.any() else math.nan


def micro(metric: MetricFunction, multi: MultiLabel) -> float:
    """A metric of all known entries together, as if they were examples of one label."""
    return float(metric(multi.pooled()))


def label_predictions(multi: MultiLabel) -> dict[str, Predictions | None]:
    """Predictions of each label; None if it is not known in any example."""
    known = multi.known.any(0).tolist()
    return {
        name: multi.label(at) if known[at] else None for at, name in enumerate(multi.label_names)
    }


def usable(values: Values, metric: Metric | None) -> np.ndarray:
    """Which values of labels enter the mean: finite ones, and infinite ones of a scoring rule."""
    keeps_infinite = metric is not None and metric.proper
    return np.asarray(~np.isnan(values) if keeps_infinite else np.isfinite(values))


def shortened(names: Sequence[str], most: int = 5) -> str:
    """The first names, and the number of the others."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _warn_left_out(metric: MetricFunction, multi: MultiLabel, used: np.ndarray) -> None:
    names = [n for n, ok in zip(multi.label_names, used, strict=True) if not ok]
    if names:
        known = descriptor(metric)
        what = "the metric" if known is None else known.name
        warn(f"{what} is not defined for {shortened(names)}: left out of the mean", stacklevel=3)
