"""Calibration errors of segments: values of given columns, and their pairs."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from calibrant.example_columns import ExampleColumn, example_columns
from calibrant.metrics.brownian_motion import range_tail
from calibrant.metrics.class_bias import FEW
from calibrant.metrics.resampling.comparisons import holm
from calibrant.metrics.resampling.samples import outcome_probs
from calibrant.predictions import Predictions
from calibrant.shapes import Index, Values
from calibrant.table_values import Table, count_text, p_text, plain_html

# Segments in a table.
SHOWN = 20
# Digits that tell any two numbers apart; integers below this have no rounding.
DIGITS, EXACT = 17, 2.0**53
ALL, MISSING = "all examples", "missing"
HEADS = ("segment", "examples", "mean error", "ECCE", "in standard errors", "p-value")


@dataclass(frozen=True)
class SegmentError:
    """The calibration error of one segment.

    Attributes:
        name: such as `region=north, 30 < age <= 45`.
        examples: number (weight) of its examples.
        error: mean probability minus frequency; above zero, it is over-predicted.
        ecce: cumulative calibration error within it, see `metrics.ecce`.
        statistic: `ecce` divided by its standard error under calibration.
        p_value: of the statistic, corrected for the number of segments (Holm). With fewer than 5
            expected or observed events, that of a Poisson test of their number. NaN with weights
            or groups, because the test needs independent examples.
    """

    name: str
    examples: float
    error: float
    ecce: float
    statistic: float
    p_value: float


@dataclass(frozen=True, repr=False)
class MulticalibrationError:
    """Result of `multicalibration_error`; prints as a table.

    Attributes:
        segments: the smallest p-value first; without p-values, the largest statistic.
        least: examples of the smallest segment.
    """

    segments: tuple[SegmentError, ...]
    least: int

    @property
    def largest(self) -> float:
        """Largest cumulative error of a segment in standard errors; 1.6 is usual for one."""
        return max(each.statistic for each in self.segments)

    @property
    def largest_ecce(self) -> float:
        """Largest cumulative error of a segment, from 0 to 1."""
        return max(each.ecce for each in self.segments)

    def significant(self, level: float = 0.05) -> tuple[SegmentError, ...]:
        """Segments whose corrected p-value is below the level."""
        return tuple(each for each in self.segments if each.p_value < level)

    @property
    def verdict(self) -> str:
        """The worst segment, and how many are significantly miscalibrated."""
        worst = self.segments[0]
        found = f"worst of {len(self.segments):,} segments: {worst.name} ({worst.error:+.4f}"
        if math.isnan(worst.p_value):
            return f"{found}, {worst.statistic:.1f} standard errors)"
        return f"{found}, p {p_text(worst.p_value)}); {len(self.significant())} are miscalibrated"

    def __repr__(self) -> str:
        return f"MulticalibrationError({self.largest:.2f} standard errors; {self.verdict})"

    def __str__(self) -> str:
        width = max(map(len, (HEADS[0], *(row[0] for row in self._rows))))
        lines = [self.verdict, f"{HEADS[0]:{width}} " + " ".join(f"{h:>18}" for h in HEADS[1:])]
        for name, *numbers in self._rows:
            lines.append(f"{name:{width}} " + " ".join(f"{each:>18}" for each in numbers))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return plain_html(Table.of(HEADS, self._rows, numbers=HEADS[1:], caption=self.verdict))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"largest": self.largest, "largest_ecce": self.largest_ecce}

    @property
    def _rows(self) -> list[list[str]]:
        return [
            [
                each.name,
                count_text(each.examples),
                f"{each.error:+.4f}",
                f"{each.ecce:.4f}",
                f"{each.statistic:.2f}",
                p_text(each.p_value),
            ]
            for each in self.segments[:SHOWN]
        ]


def multicalibration_error(
    predictions: Predictions,
    columns: Any,
    *,
    bins: int = 4,
    pairs: bool = True,
    least: int = 100,
) -> MulticalibrationError:
    r"""Largest calibration error of the segments that the values of some columns make.

    $$\max_{s} \frac{\mathrm{ECCE}_s}{\sigma_s}, \qquad
      \sigma_s = \frac{1}{n_s} \Bigl(\sum_{i \in s} p_i (1 - p_i)\Bigr)^{1/2}$$

    Segments are all examples, each value of each column, and each pair of values of two columns,
    if they have `least` examples; missing is a value. It is about the probability of class 1 of
    two classes, else about the confidence. The maximum of many segments is above 1.6 by noise
    alone: look at the p-values, which are corrected for their number. Measure it on examples that
    no calibrator was fitted to.

    Args:
        predictions: held-out examples.
        columns: a dict of columns of n values, or a data frame: numbers, strings or booleans.
        bins: numeric columns with more values than it are cut into so many bins of equal mass.
        pairs: whether pairs of columns make segments.
        least: examples (weight) of the smallest segment.

    Examples:
        >>> p = Predictions.from_binary([0.3] * 400, [0, 0, 0, 1, 1] * 80, kind="probs")
        >>> region = ["north", "north", "north", "south", "south"] * 80
        >>> found = multicalibration_error(p, {"region": region})
        >>> [(each.name, round(each.error, 2)) for each in found.segments]
        [('region=south', -0.7), ('region=north', 0.3), ('all examples', -0.1)]

    References:
        Tax et al., MCGrad: Multicalibration at Web Scale, 2025, arXiv:2509.19884.
        Arrieta-Ibarra et al., Metrics of Calibration for Probabilistic Predictions, JMLR 2022,
            arXiv:2205.09680.
    """
    if bins < 2 or least < 1:
        raise ValueError(f"bins must be at least 2 and least at least 1, got {bins} and {least}")
    given = example_columns(columns, examples=len(predictions))
    weights = predictions.example_weights
    levels = [_levels(each, weights, bins) for each in given]
    rows = _sorted_rows(predictions)
    found = list(_of_levels(rows, _named((ALL,), np.zeros(len(weights), np.int64)), 1))
    for one in levels:
        found += _of_levels(rows, one, least)
    for one, two in combinations(levels, 2) if pairs else ():
        found += _of_levels(rows, _pair(one, two), least)
    independent = predictions.weights is None and predictions.groups is None
    values = [each.p_value for each in found]
    corrected = holm(values) if independent else [math.nan] * len(values)
    segments = [
        SegmentError(*each[:-1], p_value) for each, p_value in zip(found, corrected, strict=True)
    ]
    # Without p-values the order is that of the statistics alone.
    segments.sort(key=lambda s: (s.p_value if independent else 0, -s.statistic))
    return MulticalibrationError(tuple(segments), least)


class _Levels(NamedTuple):
    """The values of a column, or of a pair: their names, number, and the one of each example.

    Most pairs of two columns of many values never occur, so names are made when they are needed.
    """

    name_of: Callable[[int], str]
    size: int
    of_example: Index


class _Rows(NamedTuple):
    """Rows in the order of their probabilities."""

    order: Index
    probs: Values
    happened: Values
    weights: Values


class _Found(NamedTuple):
    name: str
    examples: float
    error: float
    ecce: float
    statistic: float
    p_value: float


def _named(names: Sequence[str], of_example: Index) -> _Levels:
    return _Levels(names.__getitem__, len(names), of_example)


def _pair(one: _Levels, two: _Levels) -> _Levels:
    """The pairs of the values of two columns."""

    def name_of(level: int) -> str:
        first, second = divmod(level, two.size)
        return f"{one.name_of(first)}, {two.name_of(second)}"

    return _Levels(name_of, one.size * two.size, one.of_example * two.size + two.of_example)


def _levels(column: ExampleColumn, weights: Values, bins: int) -> _Levels:
    """The values of a column, or bins of many numbers."""
    if column.is_numeric:
        known = np.isfinite(column.numbers)
        values, own = column.numbers[known], weights[known]
        if len(np.unique(values)) > bins:
            order = values.argsort(kind="stable")
            mass = own[order].cumsum()
            at = np.searchsorted(mass, mass[-1] * np.arange(1, bins) / bins)
            edges = np.unique(values[order][at])
            index = np.where(known, np.searchsorted(edges, column.numbers), len(edges) + 1)
            texts = _edge_texts(edges.tolist())
            inner = [f"{a} < {column.name} <= {b}" for a, b in pairwise(texts)]
            names = [f"{column.name} <= {texts[0]}", *inner, f"{column.name} > {texts[-1]}"]
            return _named([*names, f"{column.name}={MISSING}"], index)
    texts = [MISSING if each is None else each for each in column.texts]
    known_texts, place = np.unique(np.array(texts, dtype=object), return_inverse=True)
    return _named([f"{column.name}={text}" for text in known_texts], place)


def _edge_texts(edges: Sequence[float]) -> list[str]:
    """Different numbers as texts of different numbers: six digits or more, integers in full."""
    whole = [len(str(int(abs(edge)))) if abs(edge) < EXACT else 0 for edge in edges]
    texts: list[str] = []
    for digits in range(6, DIGITS + 1):
        texts = [f"{e:.{max(digits, least)}g}" for e, least in zip(edges, whole, strict=True)]
        if len(set(map(float, texts))) == len(edges):
            break
    return texts


def _sorted_rows(predictions: Predictions) -> _Rows:
    probs, happened = outcome_probs(predictions)
    order = probs.argsort(kind="stable")
    return _Rows(order, probs[order], happened[order], predictions.example_weights[order])


def _of_levels(rows: _Rows, levels: _Levels, least: int) -> Iterator[_Found]:
    """Errors of all segments of a column, or of a pair, that are large enough."""
    at = levels.of_example[rows.order]
    # Integers of two bytes are sorted by radix.
    small = at.astype(np.int16) if levels.size < 2**15 else at
    order = small.argsort(kind="stable")
    score, happened, own = (part[order] for part in rows[1:])
    at = at[order]
    cumulative = np.cumsum(own * (happened - score))
    # Sums are read where a run of equal scores of one segment ends.
    changes = at[1:] != at[:-1]
    starts = np.flatnonzero(np.append(True, changes))
    both = np.flatnonzero(np.append(True, changes | (score[1:] != score[:-1])))
    ends = np.append(both[1:], len(at)) - 1
    before = np.where(starts > 0, cumulative[starts - 1], 0.0)
    run = np.searchsorted(both, starts)
    high = np.maximum.reduceat(cumulative[ends], run) - before
    low = np.minimum.reduceat(cumulative[ends], run) - before
    extent = high.clip(0) - low.clip(None, 0)
    mass = np.add.reduceat(own, starts)
    events = np.add.reduceat(own * score, starts)
    gap = np.add.reduceat(own * (score - happened), starts)
    spread = np.sqrt(np.add.reduceat(own * score * (1 - score), starts).clip(0))
    for each in np.flatnonzero(mass >= least):
        n, wide = float(mass[each]), float(extent[each])
        if spread[each] > 0:
            statistic = wide / float(spread[each])
        else:
            # All probabilities are 0 or 1: a single error rejects calibration.
            statistic = 0.0 if wide < 1e-12 else math.inf
        name = levels.name_of(int(at[starts[each]]))
        expected = float(events[each])
        p_value = _p_value(statistic, n, expected, expected - float(gap[each]))
        yield _Found(name, n, float(gap[each]) / n, wide / n, statistic, p_value)


def _p_value(statistic: float, n: float, expected: float, observed: float) -> float:
    """Of the statistic; where events of either kind are few, of their number (Poisson)."""
    if expected > n / 2:
        expected, observed = n - expected, n - observed
    if min(expected, observed) >= FEW:
        return range_tail(statistic)
    count = round(observed)
    tails = stats.poisson.cdf(count, expected), stats.poisson.sf(count - 1, expected)
    return float(min(1.0, 2 * min(tails)))
