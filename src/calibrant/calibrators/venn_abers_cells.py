"""The two isotonic regressions of Venn-Abers calibration, as step functions of the score."""

from typing import NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

from calibrant.calibrators.isotonic import TIED, sorted_ties
from calibrant.shapes import Values


class Groups(NamedTuple):
    """Tied examples of one class: where each group begins and ends, its weight, and its hits."""

    left: Values
    right: Values
    size: Values
    hits: Values


class Cells(NamedTuple):
    """Step functions: the edges between the cells, and p0 and p1 in each."""

    edges: np.ndarray
    low: np.ndarray
    high: np.ndarray


def cells_of(scores: Values, own: np.ndarray, weights: Values, folds: int) -> Cells:
    """Compute p0 and p1 of all scores; of several folds, their geometric means."""
    if not weights.any():
        # Nothing is known.
        return Cells(np.empty(0), np.zeros(1), np.ones(1))
    groups = _grouped(scores, own, weights)
    return _cells(groups) if folds == 1 else _merged(groups, folds)


def _grouped(scores: Values, own: np.ndarray, weights: Values) -> Groups:
    scores, weights, own, starts = sorted_ties(scores, own, weights)
    size = np.add.reduceat(weights, starts)
    hits = np.add.reduceat(np.where(own, weights, 0.0), starts)
    first, last = scores[starts], scores[np.append(starts[1:], 0) - 1]
    # Scores within rounding of a group, also in float32, are tied with it.
    spread = scores[-1] - scores[0]
    near = TIED * (min(1.0, spread) or 1.0) * np.maximum(np.abs(first), 1)
    half = np.concatenate([[np.inf], (first[1:] - last[:-1]) / 2, [np.inf]])
    sides = np.minimum(near, half[:-1]), np.minimum(near, half[1:])
    return Groups(first - sides[0], last + sides[1], size, hits)


def _merged(groups: Groups, folds: int) -> Cells:
    """Divide the examples, and merge the functions of the parts."""
    # Copies with the label, then without, of each group: the c-th copy belongs to part c mod folds.
    copies = np.stack([groups.hits, groups.size - groups.hits], 1).ravel()
    ends = np.append(0.0, copies.cumsum())
    parts = []
    for fold in range(folds):
        below = np.floor(ends / folds) + np.clip(ends % folds - fold, 0, 1)
        # Rounding of fractional weights must not give less than none.
        hits, misses = np.maximum(np.diff(below), 0).reshape(-1, 2).T
        used = hits + misses > 0
        if used.any():
            part = Groups(groups.left, groups.right, hits + misses, hits)
            parts.append(_cells(Groups(*(each[used] for each in part))))
    edges = np.unique(np.concatenate([part.edges for part in parts]))
    at = [np.append(np.searchsorted(part.edges, edges), len(part.edges)) for part in parts]
    pairs = list(zip(parts, at, strict=True))
    against = np.mean([np.log1p(-part.low[cell]) for part, cell in pairs], 0)
    high = np.mean([np.log(part.high[cell]) for part, cell in pairs], 0)
    low, high = (np.maximum.accumulate(each) for each in (0 - np.expm1(against), np.exp(high)))
    return Cells(edges, low, high)


def _cells(groups: Groups) -> Cells:
    """Both functions of one part, where they change."""
    size, hits = groups.size, groups.hits
    fitted = isotonic_regression(hits / size, weights=size)
    blocks = fitted.blocks
    above = _with_one(size, hits, blocks)
    # The same with labels and order reversed.
    below = 1 - _with_one(size[::-1], (size - hits)[::-1], len(size) - blocks[::-1])[::-1]
    edges = np.maximum.accumulate(np.stack([groups.left, groups.right], 1).ravel())
    # A tied example has p0 as just above the group, and p1 as just below.
    low, high = np.repeat(below, 2)[1:], np.repeat(above, 2)[:-1]
    changes = (low[1:] > low[:-1]) | (high[1:] > high[:-1])
    kept = np.append(True, changes)
    return Cells(edges[changes], low[kept], high[kept])


def _with_one(size: Values, hits: Values, blocks: np.ndarray) -> np.ndarray:
    r"""Isotonic regression at an added example of label 1, in each of the m + 1 gaps of m groups.

    The value in gap j is the slope of the greatest convex minorant of the cumulative sums P, with
    those after the gap moved by (1, 1): the maximum over a <= j of the minimum over b >= j of the
    slope from $P_a$ to $P_b + (1, 1)$. It is at least the value of the block around the gap, and
    for such slopes the minimum is at an end of a block, since the other points lie above the
    chord. So it is the running maximum of the slopes of the tangents from each $P_a$ to the moved
    ends of blocks, which a binary search finds, because they are convex.
    """
    width, height = (np.append(0.0, each.cumsum()) for each in (size, hits))
    ends_x, ends_y = width[blocks] + 1, height[blocks] + 1
    slopes = np.append(np.diff(ends_y) / np.diff(ends_x), np.inf)
    # After a group of hits only, the tangent is never steeper than before it.
    starts = np.flatnonzero(np.append(True, hits < size))
    x, y = width[starts], height[starts]
    first = np.searchsorted(blocks, starts)
    last = np.full_like(first, len(blocks) - 1)
    for _ in range(len(blocks).bit_length()):
        middle = (first + last) // 2
        touches = ends_y[middle] - y <= slopes[middle] * (ends_x[middle] - x)
        first, last = np.where(touches, first, middle + 1), np.where(touches, middle, last)
    tangents = np.zeros(len(width))
    tangents[starts] = (ends_y[first] - y) / (ends_x[first] - x)
    return np.minimum(np.maximum.accumulate(tangents), 1)
