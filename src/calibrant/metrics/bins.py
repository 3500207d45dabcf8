"""Sums per bin: the definition of binning, and metrics that are functions of the sums."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Float64

from calibrant import checks
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import warn
from calibrant.shapes import Index, PerBin, Values

Bins = int | Sequence[float]

# Length of partial sums: keeps rounding far below 1e-12 and the data in cache.
RUN = 1 << 16
# float32 has 23 bits of mantissa; dropping 15 bits leaves 256 cells for each power of two.
GRID_SHIFT = 15
GRID_HALF = (0x3F000000 >> GRID_SHIFT) + 1


@dataclass(frozen=True)
class BinSums:
    """Number of examples of each bin, and the sums of their confidence and correctness.

    Three float64 arrays of shape (..., b). `BinSums.of(a) + BinSums.of(b)` are the sums of both
    sets together, so batches of a stream, ranks of a cluster or the result of a SQL `GROUP BY`
    give the same value as one tensor (counts exactly, sums to 1e-12).

    Attributes:
        count: examples in the bin, or their total weight.
        confidence: sum of the confidences.
        correct: sum of correctness, one or zero each.
        edges: the b + 1 edges of right-closed bins; None for equal-mass bins and their grid.
    """

    count: PerBin
    confidence: PerBin
    correct: PerBin
    edges: tuple[float, ...] | None

    @classmethod
    def of(cls, predictions: Predictions, bins: Bins = 15) -> "BinSums":
        """Sums of the top label over bins of equal width, or over the edges given."""
        # Several metrics are functions of the same sums.
        known, key = _KNOWN.setdefault(predictions, {}), repr(bins)
        if key not in known:
            known[key] = cls.of_confidence(
                predictions.confidence.numpy(),
                predictions.correct.numpy(),
                bins=bins,
                weights=None if predictions.weights is None else predictions.weights.numpy(),
            )
        return known[key]

    @classmethod
    def of_confidence(
        cls, confidence: Any, correct: Any, *, bins: Bins = 15, weights: Any = None
    ) -> "BinSums":
        """Sums from (n,) confidences and correctness, each in [0, 1], without logits."""
        confidence, correct, weights = _checked(confidence, correct, weights)
        edges = bin_edges(bins)
        index = bin_index(confidence, edges)
        return cls(
            *weighted_sums(index, confidence, correct, weights, len(edges) - 1), tuple(edges)
        )

    @classmethod
    def of_stream(cls, batches: Iterable[Predictions], bins: Bins = 15) -> "BinSums":
        """Sums over a stream of batches, in constant memory."""
        total = cls.zero(bins)
        for batch in batches:
            total += cls.of(batch, bins)
        return total

    @classmethod
    def zero(cls, bins: Bins = 15) -> "BinSums":
        """Sums over no examples."""
        edges = bin_edges(bins)
        empty = np.zeros(len(edges) - 1)
        return cls(empty, empty, empty, tuple(edges))

    @classmethod
    def grid_zero(cls) -> "BinSums":
        """Sums of `on_grid` over no examples."""
        empty = np.zeros(2 * GRID_HALF)
        return cls(empty, empty, empty, None)

    @classmethod
    def on_grid(cls, confidence: Any, correct: Any, *, weights: Any = None) -> "BinSums":
        """Sums over a fixed fine grid from which equal-mass bins can be formed later.

        A cell is the side of 1/2 and the top bits of float32(min(p, 1 - p)): 256 cells for each
        halving of the distance to 0 or 1, so the resolution is high for over-confident networks.
        The grid does not depend on the data, so sums can be added.
        """
        confidence, correct, weights = _checked(confidence, correct, weights)
        small = np.minimum(confidence, 1 - confidence).clip(0).astype(np.float32)
        cell = small.view(np.int32).astype(np.int64) >> GRID_SHIFT
        index = np.where(confidence <= 0.5, cell, 2 * GRID_HALF - 1 - cell)
        return cls(*weighted_sums(index, confidence, correct, weights, 2 * GRID_HALF), None)

    def equal_mass(self, bins: int = 15) -> "BinSums":
        """Merge adjacent cells to `bins` bins of about equal count; cells are not split."""
        index = equal_mass_index(self.count, check_count(bins))
        return BinSums(
            segment_sum(index, self.count, bins),
            segment_sum(index, self.confidence, bins),
            segment_sum(index, self.correct, bins),
            None,
        )

    def __add__(self, other: "BinSums") -> "BinSums":
        """Sums of both sets of examples together."""
        if self.edges != other.edges or self.count.shape != other.count.shape:
            raise ValueError("cannot add sums over different bins")
        return BinSums(
            self.count + other.count,
            self.confidence + other.confidence,
            self.correct + other.correct,
            self.edges,
        )

    @property
    def bins(self) -> int:
        """Number of bins."""
        return int(self.count.shape[-1])

    @property
    def gap(self) -> PerBin:
        """Mean confidence minus accuracy of each bin, zero where it is empty."""
        filled = np.where(self.count > 0, self.count, 1)
        return np.asarray((self.confidence - self.correct) / filled)

    @property
    def share(self) -> PerBin:
        """Fraction of the examples in each bin."""
        return np.asarray(self.count / self.count.sum(-1, keepdims=True))

    def error(self, norm: float) -> Float64[np.ndarray, "..."]:
        r"""Calibration error $(\sum_b \frac{n_b}{n} |gap_b|^{norm})^{1/norm}$; inf: maximum."""
        if not self.count.any():
            raise ValueError("no examples were added yet")
        gap = np.abs(self.gap)
        if norm == math.inf:
            return np.asarray(gap.max(-1))
        return np.asarray((self.share * gap**norm).sum(-1) ** (1 / norm))

    @property
    def ece(self) -> float:
        """Expected calibration error, the mean absolute gap."""
        return float(self.error(1))

    @property
    def mce(self) -> float:
        """Maximum calibration error, the largest gap of a bin."""
        return float(self.error(math.inf))

    @property
    def rmsce(self) -> float:
        """Root mean square calibration error."""
        return float(self.error(2))


# Sums of predictions that are still in use, by their bins.
_KNOWN: WeakKeyDictionary[Predictions, dict[str, BinSums]] = WeakKeyDictionary()


def check_count(bins: object) -> int:
    """Check a number of bins: an integer, at least 1."""
    if isinstance(bins, bool) or not isinstance(bins, int | np.integer) or bins < 1:
        raise ValueError(f"bins must be an int >= 1, got {bins!r}")
    return int(bins)


def bin_edges(bins: Bins) -> Float64[np.ndarray, " e"]:
    """Edges i/B in float64, or the given edges, which must increase from 0 to 1."""
    if not isinstance(bins, Sequence | np.ndarray):
        count = check_count(bins)
        return np.arange(count + 1) / count
    edges = np.asarray(bins, dtype=np.float64)
    if edges.ndim != 1 or len(edges) < 2:
        raise ValueError(f"bin edges must be at least two numbers, got {bins!r}")
    if edges[0] != 0 or edges[-1] != 1:
        raise ValueError(f"bin edges must cover [0, 1], got {edges[0]:g} to {edges[-1]:g}")
    falls = np.flatnonzero(~(np.diff(edges) > 0))
    if len(falls):
        at = int(falls[0])
        raise ValueError(f"bin edges must increase, got {edges[at]:g} then {edges[at + 1]:g}")
    return edges


def bin_index(confidence: Values, edges: Float64[np.ndarray, " e"]) -> Index:
    """Bin of each confidence: ((b-1)/B, b/B] compared in float64, 0 in the first, 1 in the last."""
    last = len(edges) - 2
    if not np.array_equal(edges, bin_edges(last + 1)):
        return np.asarray(np.searchsorted(edges[1:-1], confidence))
    # Multiplying is many times faster than searching; rounding is off by at most one bin.
    index = np.minimum((confidence * (last + 1)).astype(np.int64), last)
    index -= confidence <= edges[index]
    index += confidence > edges[index + 1]
    return np.asarray(index.clip(0, last))


@cache
def cells_per_bin(bins: int) -> int:
    """Number of equal cells that one scan of a table divides each bin into, for equal-mass bins.

    `ceil(c * bins * cells)` is the cell of c, with one product in float64. Rounding can take a
    confidence next to an edge to the wrong side, unless the products lie as close to each other as
    the confidences do: so `bins * cells` is just below a power of two, the first for which every
    edge agrees with the comparisons of `bin_index`.

    >>> cells_per_bin(15)
    273
    """
    edges, at = bin_edges(bins), np.arange(bins + 1)
    above = np.nextafter(edges, 2)
    for bits in range(12, 52):
        most = (2**bits - 1) // bins
        for cells in range(most, max(0, most - 16), -1):
            scale, cuts = float(bins * cells), at * cells
            if (np.ceil(edges * scale) == cuts).all() and (np.ceil(above * scale) > cuts).all():
                return cells
    raise ValueError(f"no cells agree with the edges of {bins:,} bins")


def equal_mass_index(count: PerBin, bins: int) -> Index:
    """Equal-mass bin of each run of tied examples, given the sizes of the runs in order.

    The cuts are those of `np.array_split`. A run belongs to the bin of its first example: splitting
    ties would make the result depend on the order of the examples.
    """
    total = count.sum()
    before = np.cumsum(count) - count
    # Floats beyond 2 ** 53 are not exact counts.
    if total == np.floor(total) and total < 2**53:
        small, larger = divmod(int(total), bins)
        cuts = np.cumsum(np.where(np.arange(bins) < larger, small + 1, small))[:-1]
    else:
        cuts = total * np.arange(1, bins) / bins
    return np.asarray(np.searchsorted(cuts, before, side="right"))


def warn_if_thin(examples: int, bins: int, *, stacklevel: int = 3) -> None:
    """Warn if there are fewer examples than bins."""
    if examples < bins:
        advice = f"use bins<={max(1, examples // 3)} or more examples"
        warn(
            f"{examples} examples in {bins} bins: most of the value is sampling noise; {advice}",
            stacklevel=stacklevel,
        )


def _checked(confidence: Any, correct: Any, weights: Any) -> tuple[Values, Values, Values | None]:
    """Check the inputs of `BinSums`; a confidence may exceed 1 by rounding."""
    values = {
        "confidence": checks.as_values("confidence", confidence, high=1 + 1e-6),
        "correct": checks.as_values("correct", correct, high=1),
    }
    if weights is not None:
        values["weights"] = checks.as_values("weights", weights)
        # A batch may have a total weight of 0.
        if values["weights"].any():
            with np.errstate(over="ignore"):
                checks.check_total(float(values["weights"].sum()))
    if len({len(value) for value in values.values()}) > 1:
        sizes = ", ".join(f"{name} {len(value)}" for name, value in values.items())
        raise ValueError(f"lengths differ: {sizes}")
    return values["confidence"], values["correct"], values.get("weights")


def segment_sum(index: Index, values: Values, size: int) -> Float64[np.ndarray, " b"]:
    """Sum `values` by `index`, in partial sums to limit rounding errors."""
    if len(values) <= RUN:
        # Without examples bincount returns integers.
        return np.bincount(index, values, size).astype(np.float64, copy=False)
    total = np.zeros(size)
    for start in range(0, len(values), RUN):
        total += np.bincount(index[start : start + RUN], values[start : start + RUN], size)
    return total


def weighted_sums(
    index: Index, confidence: Values, correct: Values, weights: Values | None, size: int
) -> tuple[PerBin, PerBin, PerBin]:
    """Sum count, confidence and correctness of each bin, given each example's bin."""
    if weights is None:
        count = np.bincount(index, minlength=size).astype(np.float64)
        return count, segment_sum(index, confidence, size), segment_sum(index, correct, size)
    return (
        segment_sum(index, weights, size),
        segment_sum(index, weights * confidence, size),
        segment_sum(index, weights * correct, size),
    )
