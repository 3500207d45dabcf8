"""Penalised logistic regression on natural cubic splines, the penalty by marginal likelihood."""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64

from calibrant.calibrators.natural_spline import curvatures, end_slopes, evaluated, roughness
from calibrant.example_stats import map_chunks

# Knots of each function, at quantiles between these. A tenth of the distance between knots is
# spread evenly, so that tied scores have distinct knots.
KNOTS, FIRST, LAST, EVEN = 8, 0.03, 0.97, 0.1
# Precision of the normal priors of the level at the median, and of the relative slope.
LEVEL, SLOPE = 2.0, 5.0
# Penalties tried, for scores divided by the distance of their 10 % and 90 % quantiles.
PENALTIES = np.exp(np.linspace(9, -6, 11))
# Examples are merged with their neighbours into at most this many points of each function, and
# all functions together have at most this many.
POINTS, FEWEST, ALL_POINTS = 512, 64, 1 << 17
STEPS = 60
# Newton decrement, in nats of the whole sample, at each penalty and at the end.
ROUGH, TOLERANCE = 1e-4, 1e-11

# m functions: n points of each, or b knots, with d terms.
Rows = Float64[np.ndarray, "m n"]
KnotRows = Float64[np.ndarray, "m b"]


class Scores(NamedTuple):
    """Points of m functions, sorted: score, weight, and the weight of the outcome 1."""

    points: Rows
    weights: Rows
    hits: Rows


class Splines(NamedTuple):
    """Knots and values of m natural splines, the penalty, the largest gradient, convergence."""

    knots: KnotRows
    values: KnotRows
    penalty: float
    gradient: float
    converged: bool


def merged(scores: Rows, own: np.ndarray, weights: np.ndarray) -> Scores:
    """Sort the scores of each function, and merge neighbours into points of equal weight.

    Nothing is merged where there are no more examples than points; those without weight are kept.
    """
    size = min(POINTS, max(FEWEST, ALL_POINTS // len(scores)))
    found = np.zeros((3, len(scores), min(size, scores.shape[1])))

    def fill(part: slice) -> None:
        each = weights if weights.ndim == 1 else weights[part]
        each = np.broadcast_to(each, scores[part].shape)
        order = scores[part].argsort(1)
        x, w, y = (np.take_along_axis(a, order, 1) for a in (scores[part], each, own[part]))
        if x.shape[1] <= size:
            found[:, part] = x, w, w * y
            return
        before = w.cumsum(1)
        total = before[:, -1:]
        middle = np.where(total > 0, (before - w / 2) / np.where(total > 0, total, 1), 0)
        index = np.minimum((middle * size).astype(np.int64), size - 1)
        index += size * np.arange(len(x))[:, None]
        sums = (
            np.bincount(index.ravel(), each.ravel(), len(x) * size).reshape(-1, size)
            for each in (w * x, w, w * y)
        )
        moment, mass, hits = sums
        # Points without weight stay among the others.
        mean = moment / np.where(mass > 0, mass, 1)
        first = x[np.arange(len(x)), (w > 0).argmax(1)][:, None]
        found[:, part] = np.where(mass > 0, mean, first), mass, hits

    for _ in map_chunks(fill, torch.from_numpy(scores)):
        pass
    return Scores(*found)


def fit_splines(data: Scores, inverse: float) -> Splines:
    r"""Fit m splines that share one penalty.

    With $u = x / s$ for a spread s of the scores, each function minimises

    $$\sum_i w_i\,\ell(y_i, f(x_i)) + \frac{\lambda}{2} \int f''(u)^2\,du + \frac{2}{2} a^2
    + \frac{5}{2} b^2, \qquad f(x) = \frac{x}{T} + a + b\,\frac{x - \mathrm{median}}{T} + \ldots$$

    where the sum is the logistic loss. $\lambda$ maximises the marginal likelihood of all functions
    together, in Laplace's approximation.
    """
    places = [_place(*each) for each in zip(data.points, data.weights, strict=True)]
    knots, medians, spreads = (np.array(each) for each in zip(*places, strict=True))
    terms, bent = _terms(data.points, knots, medians, spreads, inverse)
    problem = _Problem(terms, data.points * inverse, data.weights, data.hits)
    at = np.zeros((len(knots), terms.shape[2]))
    best, evidence = at, math.inf
    penalty = float(PENALTIES[0])
    for tried in PENALTIES.tolist():
        ridge = _ridge(tried, terms.shape[2])
        at, loss, hessian, _, _ = problem.minimised(at, ridge, ROUGH)
        volume = np.linalg.slogdet(hessian)[1]
        value = float((loss + volume / 2 - np.log(ridge).sum() / 2).sum())
        if value < evidence:
            best, evidence, penalty = at, value, tried
    ridge = _ridge(penalty, terms.shape[2])
    at, _, _, gradient, converged = problem.minimised(best, ridge, TOLERANCE)
    level, slope = at[:, :1], at[:, 1:2]
    values = inverse * (knots + slope * (knots - medians[:, None])) + level
    values += np.einsum("mbd,md->mb", bent, at[:, 2:])
    return Splines(knots, values, penalty, gradient, converged)


def _ridge(penalty: float, size: int) -> np.ndarray:
    return np.array([LEVEL, SLOPE] + [penalty] * (size - 2))


def _place(points: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Knots, median and spread of the scores of one function."""
    used = weights > 0
    if not used.any():
        return np.linspace(-1.0, 1.0, KNOTS), 0.0, 1.0
    x, w = points[used], weights[used]
    after = w.cumsum() / w.sum()
    at = np.searchsorted(after, np.array([FIRST, 0.1, 0.5, 0.9, LAST]) * (1 - 1e-12))
    low, tenth, median, ninetieth, high = x[np.minimum(at, len(x) - 1)].tolist()
    if not high > low:
        low, high = float(x[0]), float(x[-1])
    least = 1e-5 * max(abs(low), abs(high), 1e-100)
    if high - low < least:
        # All scores are equal.
        low, high = low - least, low + least
    # The distribution function has a jump at each point, so that weights count as copies.
    shares = np.stack([after - w / w.sum(), after], 1)
    even = (np.clip(x, low, high) - low) / (high - low)
    mixed = (1 - EVEN) * np.clip((shares - FIRST) / (LAST - FIRST), 0, 1) + EVEN * even[:, None]
    ends = np.concatenate([[low], np.repeat(np.clip(x, low, high), 2), [high]])
    levels = np.linspace(0, 1, KNOTS)
    knots = np.interp(levels, np.concatenate([[0.0], mixed.ravel(), [1.0]]), ends)
    smallest = EVEN / 10 * (high - low) / KNOTS
    knots = np.maximum.accumulate(knots - smallest * np.arange(KNOTS)) + smallest * np.arange(KNOTS)
    return knots, median, (ninetieth - tenth) or high - low


def _terms(
    points: Rows, knots: KnotRows, medians: np.ndarray, spreads: np.ndarray, inverse: float
) -> tuple[np.ndarray, np.ndarray]:
    """Terms of the functions at their points, (m, n, d), and of the bent ones at the knots.

    One, the score, and bent functions with a penalty of one each.
    """
    unit = torch.from_numpy((knots - medians[:, None]) / spreads[:, None])
    x = torch.from_numpy((points - medians[:, None]) / spreads[:, None])
    second, matrix = roughness(unit)
    values, vectors = torch.linalg.eigh(second.mT @ torch.linalg.solve(matrix, second))
    # The two smallest eigenvalues are zero: straight lines.
    bent = vectors[:, :, 2:] / values[:, None, 2:].sqrt()
    columns = [torch.ones_like(x), x * torch.from_numpy(spreads)[:, None] * inverse]
    for each in bent.unbind(2):
        curvature = curvatures(unit, each)
        columns.append(evaluated(x, unit, each, curvature, end_slopes(unit, each, curvature)))
    return torch.stack(columns, 2).numpy(), bent.numpy()


class _Problem(NamedTuple):
    """Logistic loss of m functions with an offset and a ridge penalty towards zero."""

    terms: np.ndarray
    offset: Rows
    weights: Rows
    hits: Rows

    def minimised(
        self, at: np.ndarray, ridge: np.ndarray, tolerance: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, bool]:
        """Newton's method with backtracking for all functions.

        Returns the coefficients, the loss (m,), the Hessian, the largest gradient relative to the
        number of examples, and whether it converged.
        """
        loss, gradient, hessian = self._derivatives(at, ridge)
        converged = False
        for _ in range(STEPS):
            direction = -np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
            slope = np.einsum("md,md->m", gradient, direction)
            converged = bool((-slope / 2 <= tolerance * (1 + loss)).all())
            if converged:
                break
            step = np.ones(len(at))
            for _ in range(30):
                trial = at + step[:, None] * direction
                found = self._derivatives(trial, ridge)
                falls = found[0] <= loss + 1e-4 * step * slope + 1e-14 * (1 + loss)
                if falls.all():
                    break
                step = np.where(falls, step, step / 4)
            at, (loss, gradient, hessian) = trial, found
        size = np.maximum(self.weights.sum(1), 1)
        return at, loss, hessian, float(np.abs(gradient / size[:, None]).max()), converged

    def _derivatives(
        self, at: np.ndarray, ridge: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        odds = (self.terms @ at[:, :, None])[:, :, 0] + self.offset
        small = np.exp(-np.abs(odds))
        each = self.weights * (np.maximum(odds, 0) + np.log1p(small)) - self.hits * odds
        loss = each.sum(1) + (ridge * at * at).sum(1) / 2
        inverse = 1 / (1 + small)
        excess = self.weights * np.where(odds >= 0, inverse, small * inverse) - self.hits
        gradient = (excess[:, None] @ self.terms)[:, 0] + ridge * at
        scaled = self.terms * (self.weights * small * inverse * inverse)[:, :, None]
        return loss, gradient, self.terms.mT @ scaled + np.diag(ridge)
