"""Kernel calibration: a local mean of what temperature scaling leaves unexplained."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from scipy.special import expit
from torch import Tensor

from calibrant.calibrators.base import check_tensor, fitting_logits, made_from
from calibrant.calibrators.isotonic import interpolated
from calibrant.calibrators.masks import ever_allowed
from calibrant.calibrators.one_versus_rest import (
    BinaryProblems,
    Odds,
    OneVersusRest,
    binary_problems,
    functions,
)
from calibrant.calibrators.temperature import best_inverse
from calibrant.example_stats import map_chunks
from calibrant.predictions import Predictions

# Points of the grid, which ends at the lowest and highest coordinate, or here.
POINTS, FARTHEST = 256, 3.0
# Standard deviations of the kernel that are tried, in the coordinate.
BANDWIDTHS = np.geomspace(0.02, 4, 14)
# The coordinate is linear within this fraction of the spread, logarithmic beyond.
LINEAR = 0.25
# Examples without a residual at every point.
PSEUDO = 10.0
# Examples of a subsample for the median and the spread.
SAMPLE = 4096

# m functions at the b points of the grid, or of n examples.
Table = Float64[np.ndarray, "m b"]
Column = Float64[np.ndarray, "m 1"]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class KernelCalibration(OneVersusRest):
    r"""For each class a kernel regression on its log-odds, of residuals of temperature scaling.

    $$q_j \propto f_j(x_j), \qquad f(x) = g(x) + \frac{\sum_i w_i K_h(u(x) - u(x_i))\,
    (1[y_i = j] - g(x_i))}{\sum_i w_i K_h(u(x) - u(x_i)) + 10}, \qquad g(x) = \sigma(x / T)$$

    K is a Gaussian with height 1. A Nadaraya-Watson mean of the outcomes themselves is biased where
    they rise steeply, and at the ends; residuals are nearly flat. Where examples are few the
    function returns to g: ten pseudo-examples without a residual are at every point.

    Log-odds have heavy tails: $u = \mathrm{arsinh}(4 (x - \mathrm{median}) / s)\,/\,4$, with s the
    distance of the 10 % and 90 % quantiles, is logarithmic in the tails, so the kernel is wider
    there. One bandwidth h for all classes has the lowest leave-one-out NLL. Examples are shared
    between the two nearest of 256 points, where the function is kept; it is linear in the log-odds
    between them, and constant beyond the ends. Probabilities are at least those of one example,
    spread over the k classes, among n: $1 / (k (n + 1))$. The function need not be monotone.

    Attributes:
        knots: (m, 256) log-odds, with m = 1 for two classes, else k.
        values: (m, 256) calibrated log-odds at the knots.
        bandwidth: h.

    References:
        Nadaraya, On Estimating Regression, Theory of Probability and Its Applications, 1964.
        Hjort and Glad, Nonparametric Density Estimation with a Parametric Start, Annals of
            Statistics, 1995: the same idea for densities.

    Examples:
        >>> from calibrant.data import SYNTHETIC
        >>> p = SYNTHETIC["tempered"].sample(20_000, seed=0).predictions
        >>> fitted = KernelCalibration.fit(p)
        >>> round(float(fitted([[0.0, 2.0]])[0, 1].exp()), 1)  # the logit should be 1: 0.73
        0.7
    """

    knots: Tensor
    values: Tensor
    bandwidth: float

    nonparametric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.knots.shape[1] if self.knots.ndim == 2 else 0
        if size < 1:
            raise ValueError(f"knots must be (m, b), got {tuple(self.knots.shape)}")
        check_tensor("knots", self.knots, (functions(self.classes), size))
        check_tensor("values", self.values, (functions(self.classes), size))
        if bool((self.knots.diff(dim=1) <= 0).any()):
            raise ValueError("knots must increase within each function")
        if not 0 < self.bandwidth < math.inf:
            raise ValueError(f"bandwidth must be positive and finite, got {self.bandwidth}")

    @classmethod
    def fit(cls, predictions: Predictions) -> "KernelCalibration":
        """Choose the bandwidth by leave-one-out NLL; every class must occur."""
        logits = fitting_logits(predictions, every_class=True)
        problems, plain = binary_problems(predictions, logits), best_inverse(predictions, logits)
        # Without an optimum, as for separable examples, T is at least 1.
        inverse = plain.inverse if plain.converged else min(plain.inverse, 1.0)
        counts = _binned(problems)
        guide = expit(counts.knots * inverse)
        limit = 1 / (counts.weights.sum(1, keepdims=True) + 1) / int(ever_allowed(logits).sum())
        scores = [
            leave_one_out(counts, guide, _kernel(counts.grid, bandwidth), limit)
            for bandwidth in BANDWIDTHS.tolist()
        ]
        bandwidth = float(BANDWIDTHS[int(np.argmin(scores))])
        mass, residual = _smoothed(counts, guide, _kernel(counts.grid, bandwidth))
        probs = np.clip(guide + residual / (mass + PSEUDO), limit, 1 - limit)
        return cls(
            classes=predictions.classes,
            knots=torch.from_numpy(counts.knots),
            values=torch.from_numpy(np.log(probs) - np.log1p(-probs)),
            bandwidth=bandwidth,
            origin=made_from(predictions),
        )

    def map_odds(self, odds: Odds) -> Odds:
        """Interpolated log-odds."""
        knots, values = self.knots.to(odds), self.values.to(odds)
        return interpolated(odds.T.contiguous(), knots, values).T


class Counts(NamedTuple):
    """The grid (b,), its log-odds in each function, and weights of examples and of outcomes 1."""

    grid: Float64[np.ndarray, " b"]
    knots: Table
    weights: Table
    hits: Table


def _binned(problems: BinaryProblems) -> Counts:
    """Share each example between the two nearest points of a grid of the coordinate."""
    scores = problems.odds
    median, scale = _scales(problems)
    ends = np.stack([scores.min(1), scores.max(1)], 1)
    low, high = (
        float(np.clip(each, -FARTHEST, FARTHEST))
        for each in np.quantile(_coordinate(ends, median, scale), [0, 1])
    )
    width = max(high - low, 1e-3)
    grid = np.linspace(low, low + width, POINTS)
    weights, hits = np.zeros((2, len(scores), POINTS))

    def fill(part: slice) -> None:
        own, each = problems.of(part)
        position = _coordinate(scores[part], median[part], scale[part])
        position -= low
        position *= (POINTS - 1) / width
        np.clip(position, 0, POINTS - 1 - 1e-9, out=position)
        left = position.astype(np.int64)
        position -= left
        left += POINTS * np.arange(len(left))[:, None]
        each = np.broadcast_to(each, left.shape)
        upper = position * each
        size = POINTS * len(left)
        for total, lower, above, where in (
            (weights, each - upper, upper, slice(None)),
            (hits, each - upper, upper, own),
        ):
            at = left[where].ravel()
            sums = np.bincount(at, lower[where].ravel(), size)
            sums[1:] += np.bincount(at, above[where].ravel(), size)[:-1]
            total[part] = sums.reshape(-1, POINTS)

    for _ in map_chunks(fill, torch.from_numpy(scores)):
        pass
    knots = median + scale * np.sinh(grid / LINEAR)
    return Counts(grid, knots, weights, hits)


def _coordinate(scores: np.ndarray, median: Column, scale: Column) -> np.ndarray:
    return np.asarray(np.arcsinh((scores - median) / scale) * LINEAR)


def _scales(problems: BinaryProblems) -> tuple[Column, Column]:
    """Weighted median of each function, and a quarter of the distance of two quantiles."""
    scores = problems.odds
    weights = np.broadcast_to(problems.weights, scores.shape)
    some = slice(None, None, math.ceil(scores.shape[1] / SAMPLE))
    if weights[:, some].any(1).all():
        scores, weights = scores[:, some], weights[:, some]
    order = scores.argsort(1)
    scores, mass = (np.take_along_axis(each, order, 1) for each in (scores, weights))
    mass = mass.cumsum(1)
    places = [(mass < share * (1 - 1e-12) * mass[:, -1:]).sum(1) for share in (0.1, 0.5, 0.9)]
    low, median, high = (scores[np.arange(len(scores)), at][:, None] for at in places)
    spread = np.where(high > low, high - low, scores[:, -1:] - scores[:, :1])
    # Where all scores are equal.
    least = 1e-5 * np.maximum(np.abs(median), 1e-100)
    return median, np.maximum(spread, least) * LINEAR


def _kernel(grid: np.ndarray, bandwidth: float) -> Float64[np.ndarray, "b b"]:
    return np.asarray(np.exp(-(((grid[:, None] - grid) / bandwidth) ** 2) / 2))


def _smoothed(counts: Counts, guide: Table, kernel: np.ndarray) -> tuple[Table, Table]:
    """Weight of the examples near each point, and the sum of their residuals."""
    return counts.weights @ kernel, (counts.hits - counts.weights * guide) @ kernel


def leave_one_out(counts: Counts, guide: Table, kernel: np.ndarray, limit: Column | float) -> float:
    """NLL of each example under the function without it; a weight counts as copies."""
    mass, residual = _smoothed(counts, guide, kernel)
    others = np.maximum(mass - 1, 0) + PSEUDO
    one = guide + (residual - (1 - guide)) / others
    zero = guide + (residual + guide) / others
    log_one = np.log(np.clip(one, limit, 1 - limit))
    log_zero = np.log1p(-np.clip(zero, limit, 1 - limit))
    return -float((counts.hits * log_one + (counts.weights - counts.hits) * log_zero).sum())
