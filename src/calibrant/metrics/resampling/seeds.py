"""Average a metric over trainings with different seeds."""

import math
from collections.abc import Iterable

import numpy as np

from calibrant.metrics.registry import METRICS
from calibrant.metrics.resampling.intervals import Interval

# The 97.5 % quantile of the standard normal distribution.
WIDTH = 1.959964


def over_runs(
    metric: str, readings: Iterable[tuple[float | None, float | None, float | None]]
) -> Interval | None:
    """Mean over trainings, with an interval for a single training.

    Combines two independent sources of variance: test examples (mean square distance to the ends
    of the intervals) and seeds (standard deviation of the values). None without values.

    Args:
        metric: its name; the interval is clipped to the range of the metric.
        readings: value, low and high of each training; None if missing.

    Examples:
        >>> print(over_runs("nll", [(0.1, 0.07, 0.12), (0.2, 0.17, 0.22)]))
        0.1500 [0.0082, 0.2900]
    """
    ends = [[math.nan if end is None else end for end in each] for each in readings]
    value, low, high = np.array([each for each in ends if math.isfinite(each[0])]).reshape(-1, 3).T
    if len(value) == 0:
        return None
    spread = WIDTH * value.std(ddof=1) if len(value) > 1 else 0.0
    # Missing ends add nothing.
    down, up = (
        np.hypot(np.sqrt(np.nan_to_num(side**2).mean()), spread)
        for side in (value - low, high - value)
    )
    mean = value.mean()
    least, most = METRICS[metric].range if metric in METRICS else (0.0, 1.0)
    return Interval(float(mean), float(max(mean - down, least)), float(min(mean + up, most)))
