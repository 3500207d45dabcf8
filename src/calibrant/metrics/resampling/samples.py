"""What is resampled: the examples, or a smaller set that stands in for many of them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from calibrant.metrics.metric import MetricFunction, Statistic
from calibrant.metrics.registry import descriptor
from calibrant.metrics.resampling.consistency import redrawn
from calibrant.metrics.resampling.draws import draws_of
from calibrant.predictions import Predictions
from calibrant.shapes import Index, Values

# More examples than this are not resampled one by one.
LARGE = 20_000
# Examples are merged whose log-odds agree to this, within the reach.
STEP, REACH = 1 / 128, 64.0
# Probabilities that all resamples of a metric may read, and the fewest resamples.
BUDGET, FEWEST = 500_000_000, 100


@dataclass(frozen=True, eq=False)
class Sample:
    """A set of examples to resample.

    Attributes:
        examples: the set.
        counts: how many of the given examples each one stands for; None if only for itself.
        fraction: fraction of the given examples that are in the set.
    """

    examples: Predictions
    counts: Values | None = None
    fraction: float = 1.0

    def draws(self, resamples: int, seed: int | list[int]) -> Iterator[Values]:
        """Yield the weight of each example in each resample."""
        if self.counts is None:
            yield from draws_of(self.examples, resamples, seed)
        elif self.examples.groups is not None:
            for drawn in draws_of(self.examples, resamples, seed):
                yield drawn * self.counts
        else:
            generator, total = np.random.default_rng(seed), int(self.counts.sum())
            for _ in range(resamples):
                yield generator.multinomial(total, self.counts / total).astype(np.float64)

    @property
    def is_whole(self) -> bool:
        """Whether the set is all given examples."""
        return self.counts is None and self.fraction == 1

    def own_value(self, value: float, statistic: Statistic) -> float:
        """The metric on this set, given its value on all examples."""
        if self.is_whole:
            return value
        return statistic(np.ones(len(self.examples)) if self.counts is None else self.counts)

    def calibrated(self, draws: int, *, seed: int) -> Iterator[Predictions | Values]:
        """Yield outcomes drawn from the probabilities: other labels, or other counts if merged."""
        if self.counts is None:
            yield from redrawn(self.examples, draws, seed=seed)
            return
        # The first half has the outcome, the second half has not.
        total = np.add(*np.split(self.counts, 2)).astype(np.int64)
        chance = outcome_probs(self.examples)[0][: len(total)]
        generator = np.random.default_rng(seed)
        for _ in range(draws):
            drawn = generator.binomial(total, chance)
            yield np.concatenate([drawn, total - drawn]).astype(np.float64)

    def moved(self, draws: Values, value: float, own: float) -> Values:
        """Move resampled values of this set to those of all examples.

        Args:
            draws: values of the resamples.
            value: value of the metric on all examples.
            own: value of the metric on this set.
        """
        if self.is_whole:
            return draws
        if not math.isfinite(value + own):
            return np.full_like(draws, value)
        if self.counts is not None:
            return np.asarray(draws - own + value)
        # A subset has a larger sampling bias: only the deviations are used.
        return np.asarray(value + (draws - np.nanmean(draws)) * math.sqrt(self.fraction))


class Samples:
    """Choose what to resample for each metric; the same examples give the same choice."""

    def __init__(self, predictions: Predictions) -> None:
        self.predictions = predictions

    def of(self, metric: MetricFunction, *, paired: bool = False) -> Sample:
        """The set to resample for a metric.

        Up to 20,000 examples it is the examples themselves. More are merged where the metric
        depends on a single probability and its outcome, unless `paired` models need the same rows.
        For other metrics a random subset is drawn; its deviations are scaled to the number of
        examples. Functions that are not metrics of calibrant may not scale so: all examples.
        """
        given, known = self.predictions, descriptor(metric)
        if len(given) <= LARGE or known is None:
            return self._whole
        single = given.classes == 2 or not known.every_class
        if single and not paired and given.weights is None and self._merged is not None:
            return self._merged
        return self._whole if given.groups is not None else self._subset

    def resamples_of(self, metric: MetricFunction, resamples: int, *, paired: bool = False) -> int:
        """How many resamples are affordable for a metric; fewer if its set is very large."""
        known, examples = descriptor(metric), self.of(metric, paired=paired).examples
        width = 1 if known is not None and not known.every_class else examples.classes
        return min(resamples, max(FEWEST, BUDGET // (len(examples) * width)))

    def notes(self, metrics: Mapping[str, MetricFunction], resamples: int) -> list[str]:
        """Say where intervals are not those of a full bootstrap of all examples."""
        given, said = len(self.predictions), []
        used = {name: self.of(metric) for name, metric in metrics.items()}
        merged_ones = [each for each in used.values() if each.counts is not None]
        if merged_ones:
            rows = len(merged_ones[0].examples)
            said.append(
                f"intervals: bootstrap of {given:,} examples, drawn together in {rows:,} groups of "
                "equal outcome and almost equal probability"
            )
        part = [name for name, sample in used.items() if sample.fraction < 1]
        if part:
            said.append(
                f"{', '.join(part)}: interval from a random subset of {LARGE:,} examples, scaled "
                f"to {given:,}"
            )
        fewer = {
            name: count
            for name, metric in metrics.items()
            if (count := self.resamples_of(metric, resamples)) < resamples
        }
        if fewer:
            said.append(f"{', '.join(fewer)}: {min(fewer.values())} resamples, because of the size")
        return said

    @cached_property
    def _whole(self) -> Sample:
        return Sample(self.predictions)

    @cached_property
    def _merged(self) -> Sample | None:
        """Merged examples; None if a class of two is masked, or if groups leave little to merge."""
        given = self.predictions
        if given.classes == 2 and not bool(given.log_odds.isfinite().all()):
            return None
        found = merged(given)
        return found if len(found.examples) < 0.8 * len(given) else None

    @cached_property
    def _subset(self) -> Sample:
        given = self.predictions
        chosen = np.random.default_rng(0).permutation(len(given))[:LARGE]
        return Sample(given.take(np.sort(chosen)), fraction=LARGE / len(given))


def outcome_probs(predictions: Predictions) -> tuple[Values, Values]:
    """The probability that is calibrated, and its outcome: of class 1 of two, else confidence."""
    if predictions.classes == 2:
        return (
            predictions.positive_probs.numpy(),
            predictions.labels.numpy().astype(np.float64),
        )
    return predictions.confidence.numpy(), predictions.correct.numpy()


def merged(predictions: Predictions) -> Sample:
    """Merge examples of equal outcome and group whose log-odds agree to 1/128.

    Without groups both outcomes of each probability are present, the first half with the outcome.
    """
    probs, outcome = outcome_probs(predictions)
    if predictions.classes == 2:
        odds = predictions.floored_log_odds.numpy()
    else:
        with np.errstate(divide="ignore"):
            odds = np.log(probs) - np.log1p(-probs)
    cell = (odds.clip(-REACH, REACH) / STEP).round().astype(np.int64) + int(REACH / STEP)
    cells = 2 * int(REACH / STEP) + 1
    if predictions.groups is not None:
        return _merged_within_groups(predictions, cell + cells * predictions.groups.numpy())
    index = cell + cells * (outcome == 0)
    count = np.bincount(index, minlength=2 * cells).astype(np.float64)
    # Of both outcomes together, so that their probabilities are equal.
    total = count[:cells] + count[cells:]
    filled = np.flatnonzero(total)
    level = np.bincount(cell, odds if predictions.classes == 2 else probs, cells)[filled]
    level = np.tile(level / total[filled], 2)
    happened = np.repeat([1, 0], len(filled))
    examples = _examples(predictions.classes, level, happened)
    return Sample(examples, np.concatenate([count[filled], count[cells + filled]]))


def _merged_within_groups(predictions: Predictions, key: Index) -> Sample:
    """Merge examples with equal keys and outcomes, which belong to one group."""
    probs, outcome = outcome_probs(predictions)
    groups = predictions.groups
    assert groups is not None  # noqa: S101, for the type checker
    values = predictions.floored_log_odds.numpy() if predictions.classes == 2 else probs
    _, first, index, count = np.unique(
        2 * key + (outcome > 0), return_index=True, return_inverse=True, return_counts=True
    )
    level = np.bincount(index, values) / count
    examples = _examples(predictions.classes, level, outcome[first], groups.numpy()[first])
    return Sample(examples, count.astype(np.float64))


def _examples(
    classes: int, level: Values, outcome: np.ndarray, groups: Index | None = None
) -> Predictions:
    """Predictions of log-odds of two classes, or of confidences."""
    if classes == 2:
        return Predictions.from_binary(level, outcome, kind="logits", groups=groups)
    return Predictions.from_confidence(level, outcome, groups=groups)
