"""Differences between the metrics of two combinations, with their intervals and p-values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy import stats

from calibrant.metrics import METRICS, Interval, holm
from calibrant.metrics.resampling.seeds import WIDTH
from calibrant.table_values import Mark

LEVEL = 0.95
# Numbers that agree to this part of their size are the same.
SAME = 1e-9

How = Literal["seeds", "examples"]


@dataclass(frozen=True)
class CombinationDifference:
    """How much larger a metric is for one combination than for another, with its 95 % interval.

    Of `overconfidence` the distance to zero is compared. The p-value is two-sided; `adjusted` is
    corrected for all combinations that were compared (Holm). `how` is "seeds" for the paired
    t-interval over the `seeds` seeds that both have; "examples" for an interval made from the two
    over test examples, which says nothing about another training.
    """

    value: float
    low: float
    high: float
    p_value: float
    adjusted: float
    how: How
    seeds: int


@dataclass(frozen=True)
class Reading:
    """One metric of one combination.

    `interval` is the mean over seeds with the interval of a single training (`over_runs`); `runs`
    has the value and interval over test examples of each seed; `missing` counts seeds without a
    finite value. `mark` and `difference` compare it with the best.
    """

    metric: str
    interval: Interval
    runs: Mapping[int, Interval]
    missing: int = 0
    mark: Mark = "unknown"
    difference: CombinationDifference | None = None

    @property
    def values(self) -> dict[int, float]:
        """The value of each seed."""
        return {seed: each.value for seed, each in self.runs.items()}

    @property
    def cost(self) -> float:
        """The mean, such that less is better."""
        held, metric = list(self.values.values()), METRICS.get(self.metric)
        return float(np.mean([metric.loss(value) for value in held] if metric else held))


def differences(
    readings: Sequence[Reading | None], reference: Reading | None
) -> list[CombinationDifference | None]:
    """Differences of readings to a reference; None for itself and where nothing can be said."""
    if reference is None:
        return [None] * len(readings)
    found = [
        None if each is None or each is reference else _difference(each, reference)
        for each in readings
    ]
    corrected = iter(holm([gap.p_value for gap in found if gap is not None]))
    return [None if gap is None else replace(gap, adjusted=next(corrected)) for gap in found]


def better(metric: str) -> Literal["lower", "higher", "zero", "one"]:
    """Which values of a metric are better; of one that is not ours, lower ones."""
    return METRICS[metric].best if metric in METRICS else "lower"


def is_worse(metric: str, difference: CombinationDifference) -> bool:
    """Whether the interval of a difference lies on the bad side of zero."""
    return difference.high < 0 if better(metric) == "higher" else difference.low > 0


def is_better(metric: str, difference: CombinationDifference) -> bool:
    """Whether the interval of a difference lies on the good side of zero."""
    return difference.low > 0 if better(metric) == "higher" else difference.high < 0


def _difference(first: Reading, second: Reading) -> CombinationDifference | None:
    seeds = [seed for seed in first.runs if seed in second.runs]
    if not seeds:
        return None
    ends = [
        np.array([_ends(each.metric, each.runs[seed]) for seed in seeds])
        for each in (first, second)
    ]
    by_seed = ends[0][:, 0] - ends[1][:, 0]
    value = float(by_seed.mean())
    size = SAME * float(np.abs(np.stack(ends)[..., 0]).max())
    if np.abs(by_seed).max() <= size:
        how: How = "seeds" if len(seeds) > 1 else "examples"
        return CombinationDifference(0.0, 0.0, 0.0, 1.0, 1.0, how, len(seeds))
    spread = float(by_seed.std(ddof=1)) if len(seeds) > 1 else 0.0
    # Seeds that all differ by the same amount, one example say, do not show what chance does.
    if spread > size:
        error, freedom = spread / math.sqrt(len(seeds)), len(seeds) - 1
        half = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * error
        p_value = 2 * float(stats.t.sf(abs(value) / error, freedom))
        return CombinationDifference(
            value, value - half, value + half, p_value, p_value, "seeds", len(seeds)
        )
    return _by_examples(value, ends[0].mean(0), ends[1].mean(0), len(seeds))


def _ends(metric: str, each: Interval) -> tuple[float, float, float]:
    """Value, low and high; of the distance to the best value where that is zero or one."""
    best = {"zero": 0.0, "one": 1.0}.get(better(metric))
    if best is None:
        return each.value, each.low, each.high
    low, high = sorted((abs(each.low - best), abs(each.high - best)))
    return abs(each.value - best), 0.0 if each.low < best < each.high else low, high


def _by_examples(value: float, first: Any, second: Any, seeds: int) -> CombinationDifference | None:
    """The interval of a difference from those of its two parts, taken as independent.

    Both were measured on the same examples, and what is hard for both cancels: it is too wide
    rather than too narrow. None if an interval is missing or has no width.

    References:
        Zou, Donner, Construction of Confidence Limits about Effect Measures, Stat. Med. 2008.
    """
    down = math.hypot(first[0] - first[1], second[2] - second[0])
    up = math.hypot(first[2] - first[0], second[0] - second[1])
    half = down if value > 0 else up
    if not math.isfinite(down + up) or half == 0:
        return None
    p_value = 2 * float(stats.norm.sf(WIDTH * abs(value) / half))
    return CombinationDifference(
        value, value - down, value + up, p_value, p_value, "examples", seeds
    )
