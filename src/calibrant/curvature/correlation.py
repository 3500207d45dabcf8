"""Correlation of two measurements of a probe during a training run, and over several runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64, Int64
from scipy import stats

from calibrant.checks import as_numbers
from calibrant.losses.settings import at_least, one_of
from calibrant.metrics import Interval
from calibrant.setting_errors import did_you_mean
from calibrant.shapes import Values

Kind = Literal["pearson", "spearman"]
Records = Sequence[Mapping[str, Any]]
# Fewer pairs have a correlation of 1 or -1.
LEAST = 3


def correlation(
    first: Any,
    second: Any,
    *,
    kind: Kind = "pearson",
    level: float = 0.95,
    resamples: int = 1000,
    block: int | None = None,
    seed: int = 0,
) -> Interval:
    """Correlation of two time series of readings, with a moving-block bootstrap interval.

    Neighbouring readings are autocorrelated, so resampling single readings would give an interval
    that is much too narrow. Overlapping blocks of neighbours are resampled instead, and the
    interval has the percentiles of their correlations. It is about right for stationary readings,
    still too narrow where readings are autocorrelated for longer than a block, and says little
    where both series only drift: any two trends correlate.

    Args:
        first: (n,) readings in the order of the steps.
        second: (n,) readings at the same steps. Pairs with a non-finite value are left out.
        kind: "pearson" (linear) or "spearman" (of the ranks: monotone).
        level: nominal coverage.
        resamples: number of resamples.
        block: readings per block; by default the rounded square root of n.
        seed: seed of the resamples.

    Returns:
        The correlation and its interval; NaN where one sequence is constant or fewer than 3 pairs
        are finite.

    References:
        Künsch, The Jackknife and the Bootstrap for General Stationary Observations, Annals of
        Statistics 1989.

    Examples:
        >>> correlation([1, 2, 3, 4], [2, 4, 6, 9], kind="spearman").value
        1.0
    """
    one_of("kind", kind, KINDS)
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level:g}")
    at_least("resamples", 1, resamples)
    one, two = _readings("first", first), _readings("second", second)
    if len(one) != len(two):
        raise ValueError(f"first and second must be equally long, got {len(one)} and {len(two)}")
    if len(one) < LEAST:
        raise ValueError(f"a correlation needs at least {LEAST} readings, got {len(one)}")
    block = round(math.sqrt(len(one))) if block is None else block
    if not 1 <= block <= len(one):
        raise ValueError(f"block must lie in [1, {len(one)}], got {block}")
    finite = np.isfinite(one) & np.isfinite(two)
    pairs = np.stack([one[finite], two[finite]])
    if pairs.shape[1] < LEAST:
        return Interval(math.nan, math.nan, math.nan, level)
    value = float(KINDS[kind](pairs))
    draws = KINDS[kind](pairs[:, _blocks(pairs.shape[1], block, resamples, seed)])
    # Resamples with a constant series have no correlation.
    draws = draws[np.isfinite(draws)]
    if not len(draws):
        return Interval(value, math.nan, math.nan, level)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high), level)


@dataclass(frozen=True)
class Correlations:
    """The correlation in each of several runs, NaN where there is none, and their mean."""

    mean: Interval
    values: tuple[float, ...]

    @property
    def left_out(self) -> int:
        """Number of runs without a correlation, which are not in the mean."""
        return sum(math.isnan(value) for value in self.values)

    def __str__(self) -> str:
        used = f"{len(self.values) - self.left_out} of {len(self.values)} runs"
        return f"{self.mean.value:.2f} [{self.mean.low:.2f}, {self.mean.high:.2f}] over {used}"


def correlations(
    runs: Mapping[str, Records] | Sequence[Records],
    first: str = "train_ece",
    second: str = "gauss_newton",
    *,
    kind: Kind = "pearson",
    level: float = 0.95,
) -> Correlations:
    r"""Correlation of two columns in each of several runs, and their mean.

    Trainings are independent, so this interval, unlike that of one `correlation`, needs no blocks:
    it is Student's t-interval of the mean, clipped to [-1, 1].

    `runs` are the `Probe.records` of each run. The interval is NaN with fewer than two
    runs; a correlation is NaN where a column is constant or fewer than 3 records have both.

    Examples:
        >>> run = [{"train_ece": 0.3, "gauss_newton": 9.0}, {"train_ece": 0.2, "gauss_newton": 5.0}]
        >>> run += [{"train_ece": 0.1, "gauss_newton": 4.0}]
        >>> print(correlations([run, run, run[:2]]))
        0.94 [0.94, 0.94] over 2 of 3 runs
    """
    one_of("kind", kind, KINDS)
    each_run = [list(each) for each in (runs.values() if isinstance(runs, Mapping) else runs)]
    known = list(dict.fromkeys(name for each in each_run for record in each for name in record))
    for name in (first, second):
        if name not in known:
            raise ValueError(f"no record has {name!r}; {did_you_mean(name, known)}")
    found = []
    for records in each_run:
        columns = [[record.get(name, math.nan) for record in records] for name in (first, second)]
        pairs = np.array(columns, dtype=np.float64)
        pairs = pairs[:, np.isfinite(pairs).all(0)]
        found.append(float(KINDS[kind](pairs)) if pairs.shape[1] >= LEAST else math.nan)
    return Correlations(_mean(found, level), tuple(found))


def _mean(values: Sequence[float], level: float) -> Interval:
    """Mean of the correlations that are not NaN, with its t-interval clipped to [-1, 1]."""
    held = np.array([value for value in values if not math.isnan(value)])
    value = float(held.mean()) if len(held) else math.nan
    if len(held) < 2:
        return Interval(value, math.nan, math.nan, level)
    # Without Fisher's z: a single correlation of 1 would outweigh all others.
    reach = stats.t.ppf((1 + level) / 2, len(held) - 1) * held.std(ddof=1) / math.sqrt(len(held))
    return Interval(value, max(-1.0, value - reach), min(1.0, value + reach), level)


def _blocks(size: int, block: int, resamples: int, seed: int) -> Int64[np.ndarray, "r n"]:
    """Indices of each resample: blocks of neighbours, `size` in total."""
    block = min(block, size)
    generator = np.random.default_rng(seed)
    starts = generator.integers(0, size - block + 1, (resamples, -(-size // block)))
    index = starts[:, :, None] + np.arange(block)
    return index.reshape(resamples, -1)[:, :size]


def _pearson(pairs: Float64[np.ndarray, "2 ... n"]) -> Float64[np.ndarray, " ..."]:
    """Correlation along the last axis, NaN where either series is constant."""
    # Scaled first, so that squares neither overflow nor underflow.
    low, high = pairs.min(-1, keepdims=True), pairs.max(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scaled = (pairs - low) / (high - low)
        one, two = scaled - scaled.mean(-1, keepdims=True)
        found = (one * two).sum(-1) / np.sqrt((one**2).sum(-1) * (two**2).sum(-1))
    return np.asarray(found.clip(-1, 1))


def _spearman(pairs: Float64[np.ndarray, "2 ... n"]) -> Float64[np.ndarray, " ..."]:
    return _pearson(stats.rankdata(pairs, axis=-1))


# Correlations along the last axis of pairs.
KINDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"pearson": _pearson, "spearman": _spearman}


def _readings(name: str, values: Any) -> Values:
    readings = as_numbers(name, values).astype(np.float64)
    if readings.ndim != 1:
        raise ValueError(f"{name} must be (n,), got {readings.shape}")
    return readings
