"""Differences between models on the same examples, with intervals and p-values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from calibrant.metrics.metric import MetricFunction
from calibrant.metrics.resampling.draws import check_units, draws_of, resampler
from calibrant.metrics.resampling.intervals import check_options, quantiles
from calibrant.predictions import Predictions


@dataclass(frozen=True)
class Difference:
    """Metric of the first predictions minus that of the second, with its interval.

    `p_value` is two-sided: twice the fraction of resampled differences of the other sign.
    """

    value: float
    low: float
    high: float
    p_value: float
    level: float = 0.95

    def __str__(self) -> str:
        return f"{self.value:+.4f} [{self.low:+.4f}, {self.high:+.4f}], p = {self.p_value:.3g}"


def compare(
    metric: MetricFunction,
    first: Predictions,
    second: Predictions,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    progress: Callable[[], None] | None = None,
) -> Difference:
    """Compare a metric of two models on the same examples.

    Paired: both models are evaluated on the same resamples. The p-value is twice the smaller tail
    of the resampled differences beyond zero.

    `nll`, `brier`, `accuracy` and `overconfidence` are unbiased and `debiased_ece` nearly so. The
    bias of `ece`, `sece`, `smece` and similar metrics depends on the distribution of confidence:
    two calibrated models of different sharpness may differ significantly. See docs/bias.md.
    """
    check_options(level, resamples, "percentile")
    check_units(first)
    if len(first) != len(second) or not bool((first.labels == second.labels).all()):
        raise ValueError(
            "compare needs the same examples in the same order: "
            f"the labels of {first} and {second} differ"
        )
    for name in ("weights", "groups"):
        one, two = getattr(first, name), getattr(second, name)
        if (one is None) != (two is None) or (one is not None and not bool((one == two).all())):
            raise ValueError(f"compare needs the same {name} in both predictions")
    of_first, of_second = resampler(metric, first), resampler(metric, second)
    draws = np.empty(resamples)
    for column, counts in enumerate(draws_of(first, resamples, seed)):
        draws[column] = of_first(counts) - of_second(counts)
        if progress is not None:
            progress()
    low, high = quantiles(draws, level)
    # Not (draws <= 0): NaN, the difference of two infinite scores, counts for both sides.
    tail = min(int((~(draws > 0)).sum()), int((~(draws < 0)).sum()))
    p_value = min(1.0, 2 * (tail + 1) / (resamples + 1))
    return Difference(metric(first) - metric(second), low, high, p_value, level)


def compare_many(
    metric: MetricFunction,
    baseline: Predictions,
    others: Mapping[str, Predictions],
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Difference]:
    """Compare several models with one baseline; p-values are corrected for their number (Holm)."""
    found = {
        name: compare(metric, other, baseline, level=level, resamples=resamples, seed=seed)
        for name, other in others.items()
    }
    corrected = holm([difference.p_value for difference in found.values()])
    return {
        name: replace(difference, p_value=p_value)
        for (name, difference), p_value in zip(found.items(), corrected, strict=True)
    }


def holm(p_values: list[float]) -> list[float]:
    """Correct p-values for multiple testing (family-wise error rate).

    References:
        Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scand. J. Statistics 1979.

    Examples:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = values.argsort(kind="stable")
    factors = np.arange(len(values), 0, -1)
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(np.maximum.accumulate(values[order] * factors), 1)
    return [float(value) for value in corrected]
