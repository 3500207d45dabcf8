"""Differences between models, paired or not, with intervals and p-values."""

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrant.advice import InputError
from calibrant.metrics.metric import MetricFunction
from calibrant.metrics.resampling.draws import check_units, resampler
from calibrant.metrics.resampling.intervals import check_options, quantiles
from calibrant.metrics.resampling.samples import Samples
from calibrant.predictions import Predictions
from calibrant.progress import steps
from calibrant.shapes import Values
from calibrant.table_values import p_text


@dataclass(frozen=True, repr=False)
class Difference:
    """Metric of the first predictions minus that of the second, with its interval.

    `p_value` is two-sided: twice the fraction of resampled differences of the other sign. Its
    smallest value, 2 / (resamples + 1), is only a bound.
    """

    value: float
    low: float
    high: float
    p_value: float
    level: float = 0.95
    smallest: float = 0.0

    def __repr__(self) -> str:
        return f"Difference({self})"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(str(self))}</code>"

    def __str__(self) -> str:
        ends = f"[{self.low:+.4f}, {self.high:+.4f}]"
        return f"{self.value:+.4f} {ends}, p {p_text(self.p_value, self.smallest)}"


def in_one_class_order(models: Mapping[str, Predictions]) -> dict[str, Predictions]:
    """The same models with their classes in the order of the first, if the names are the same."""
    first = next(iter(models.values())).class_names

    def differs(names: tuple[str, ...] | None) -> bool:
        return bool(first and names and names != first and sorted(names) == sorted(first))

    return {
        name: each.with_class_order(first or ()) if differs(each.class_names) else each
        for name, each in models.items()
    }


def same_examples(first: Predictions, second: Predictions) -> bool:
    """Whether two predictions have the same labels, weights and groups in the same order.

    Where only the confidence is known, there are no labels to compare, but their number.
    """
    top_label = first.top_label_only and second.top_label_only
    if len(first) != len(second):
        return False
    for name in ("weights", "groups") if top_label else ("labels", "weights", "groups"):
        one, two = getattr(first, name), getattr(second, name)
        if (one is None) != (two is None):
            return False
        if one is not None and (len(one) != len(two) or not bool((one == two).all())):
            return False
    return True


def check_same_examples(
    first: Predictions, second: Predictions, names: tuple[str, str] | None = None
) -> None:
    """Refuse a paired comparison of different examples; names, such as files, are for the error."""
    if same_examples(first, second):
        return
    one, two = names or (first, second)
    raise InputError(
        "a paired comparison needs the same examples in the same order, but the labels, weights or "
        f"groups of {one} and {two} differ",
        "pass paired=False for different examples",
        "add --unpaired for different examples",
    )


def compare(
    metric: MetricFunction,
    first: Predictions,
    second: Predictions,
    *,
    paired: bool = True,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    progress: Callable[[], None] | None = None,
) -> Difference:
    """Compare a metric of two models, or of one model on two sets of examples.

    Paired, both are evaluated on the same resamples of the same examples. Unpaired, such as for
    two days, each is resampled on its own. The p-value is twice the smaller tail of the resampled
    differences beyond zero.

    `nll`, `brier`, `accuracy` and `overconfidence` are unbiased and `debiased_ece` nearly so. The
    bias of `ece`, `sece`, `smece` and similar metrics depends on the distribution of confidence:
    two calibrated models of different sharpness may differ significantly. See docs/bias.md.

    Of more than 20,000 examples a subset or merged examples are resampled, as in `interval`.
    """
    return _differences(
        metric,
        [first],
        second,
        paired=paired,
        level=level,
        resamples=resamples,
        seed=seed,
        progress=progress,
    )[0]


def _differences(
    metric: MetricFunction,
    models: Sequence[Predictions],
    baseline: Predictions,
    *,
    paired: bool,
    level: float,
    resamples: int,
    seed: int,
    progress: Callable[[], None] | None,
) -> list[Difference]:
    """Differences to a baseline, all from the same resamples; unpaired of one model only."""
    check_options(level, resamples, "percentile")
    for model in models:
        check_units(model)
        if paired:
            check_same_examples(model, baseline)
    if not paired:
        check_units(baseline)
    every = [*models, baseline]
    chosen = [Samples(each) for each in every]
    samples = [each.of(metric, paired=paired) for each in chosen]
    statistics = [resampler(metric, each.examples) for each in samples]
    resamples = min(each.resamples_of(metric, resamples, paired=paired) for each in chosen)
    drawn = np.empty((len(every), resamples))
    # Another stream of random numbers: equal ones would correlate the two sets.
    other = None if paired else samples[-1].draws(resamples, [seed, 1])
    with steps(progress, resamples * len(models), "resampling") as step:
        for column, counts in enumerate(samples[0].draws(resamples, seed)):
            last = counts if other is None else next(other)
            drawn[:-1, column] = [of(counts) for of in statistics[:-1]]
            drawn[-1, column] = statistics[-1](last)
            for _ in models:
                step()
    values = [metric(each) for each in every]
    moved = [
        sample.moved(row, value, sample.own_value(value, statistic))
        for sample, row, value, statistic in zip(samples, drawn, values, statistics, strict=True)
    ]
    return [
        _difference(value - values[-1], draws - moved[-1], level)
        for value, draws in zip(values[:-1], moved[:-1], strict=True)
    ]


def _difference(value: float, draws: Values, level: float) -> Difference:
    """The interval and the p-value of a difference from its resamples."""
    low, high = quantiles(draws, level)
    # Not (draws <= 0): NaN, the difference of two infinite scores, counts for both sides.
    tail = min(int((~(draws > 0)).sum()), int((~(draws < 0)).sum()))
    p_value = min(1.0, 2 * (tail + 1) / (len(draws) + 1))
    return Difference(value, low, high, p_value, level, 2 / (len(draws) + 1))


def compare_many(
    metric: MetricFunction,
    baseline: Predictions,
    others: Mapping[str, Predictions],
    *,
    paired: bool = True,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    progress: Callable[[], None] | None = None,
) -> dict[str, Difference]:
    """Compare several models with one baseline; p-values are corrected for their number (Holm)."""
    # Unpaired models are each resampled on their own, with the same random numbers.
    sets = [list(others.values())] if paired else [[each] for each in others.values()]
    differences = [
        difference
        for models in sets
        for difference in _differences(
            metric,
            models,
            baseline,
            paired=paired,
            level=level,
            resamples=resamples,
            seed=seed,
            progress=progress,
        )
    ]
    found = dict(zip(others, differences, strict=True))
    corrected = holm([difference.p_value for difference in found.values()])
    smallest = min(1.0, 2 * len(others) / (resamples + 1))
    return {
        name: replace(difference, p_value=p_value, smallest=smallest)
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
