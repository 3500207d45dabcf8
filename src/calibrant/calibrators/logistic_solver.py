"""One-versus-rest logistic regression of many classes at once, by Newton's method."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

STEPS = 60
# Half a Newton decrement estimates the distance to the minimum, here relative to the loss.
TOLERANCE = 1e-14
# A loss below this multiple of the rarer outcome's frequency means separable data.
PERFECT = 1e-9
# Ridge penalty towards the identity for separable data, relative to the same frequency.
RIDGE = 1e-4
# Keeps Newton's equations solvable where two terms are collinear.
JITTER = 1e-13

# Arrays of c classes, d coefficients and n examples.
Block = np.ndarray


class Solved(NamedTuple):
    """Coefficients of c classes, (c, d), with loss (c,), gradient and convergence."""

    coefficients: np.ndarray
    loss: np.ndarray
    gradient: np.ndarray
    converged: np.ndarray


def solve(
    terms: Block,
    targets: Block,
    weights: np.ndarray,
    identity: np.ndarray,
    nonnegative: tuple[int, ...],
) -> Solved:
    """Fit the coefficients of each class; regularised towards the identity if separable.

    Weights are (n,), or (c, n) for classes that use different examples; a class without examples
    keeps the identity.
    """
    total = weights.sum(-1, keepdims=True)
    weights = weights / np.where(total > 0, total, 1.0)
    frequency = _sums(targets, weights)
    rarer = np.minimum(frequency, 1 - frequency)
    free = np.ones(len(identity), dtype=bool)
    problem = Problem(terms, targets, weights, identity, free, np.zeros(terms.shape[:2]))
    best = _constrained(problem, list(nonnegative))
    separable = np.flatnonzero(~best.converged | (best.loss < PERFECT * rarer))
    if len(separable):
        hard = problem.of(separable)
        squares = [_sums(hard.terms[:, at] ** 2, hard.weights) for at in range(len(identity))]
        ridge = RIDGE * rarer[separable, None] * np.maximum(np.stack(squares, 1), 1e-12)
        refitted = _constrained(replace(hard, ridge=ridge), list(nonnegative))
        for all_of, some in zip(best, refitted, strict=True):
            all_of[separable] = some
        best.converged[separable] = False
    return best


def _constrained(problem: "Problem", columns: list[int]) -> Solved:
    """Minimise with the coefficients of `columns` nonnegative: try every active set."""
    best = _newton(problem)
    inside = (best.coefficients[:, columns] >= 0).all(1)
    again = np.flatnonzero(~inside | ~best.converged)
    if not columns or not len(again):
        return best
    best.loss[~inside] = np.inf
    for active in [[column] for column in columns] + [columns]:
        free = ~np.isin(np.arange(len(problem.identity)), active)
        face = _newton(replace(problem.of(again), free=free))
        better = (face.coefficients[:, columns] >= 0).all(1) & (face.loss < best.loss[again])
        for all_of, some in zip(best, face, strict=True):
            all_of[again[better]] = some[better]
    return best


def _newton(problem: "Problem") -> Solved:
    """Newton's method with backtracking; classes that converged drop out."""
    at = _start(problem)
    solved = Solved(
        at,
        loss=np.full(len(at), np.inf),
        gradient=np.zeros_like(at),
        converged=np.zeros(len(at), dtype=bool),
    )
    index = np.arange(len(at))
    trial, direction = at.copy(), np.zeros_like(at)
    slope, step = np.zeros(len(at)), np.ones(len(at))
    for _ in range(STEPS):
        loss, gradient, hessian = problem.derivatives(trial)
        falls = loss <= solved.loss[index] + 1e-4 * step * slope
        for all_of, some in zip(solved[:3], (trial, loss, gradient), strict=True):
            all_of[index[falls]] = some[falls]
        direction[falls] = _direction(gradient[falls], hessian[falls])
        slope = np.where(falls, np.einsum("cd,cd->c", gradient, direction), slope)
        step = np.where(falls, 1.0, step / 4)
        done = falls & (-slope / 2 <= TOLERANCE * loss)
        at[index[done]] += direction[done]
        solved.converged[index[done]] = True
        if done.all():
            break
        if done.any():
            left = ~done
            problem, index = problem.of(left), index[left]
            direction, slope, step = direction[left], slope[left], step[left]
        trial = at[index] + step[:, None] * direction
    return solved


@dataclass(frozen=True)
class Problem:
    """Binary NLL of c classes plus the ridge penalty, as functions of the coefficients."""

    terms: Block
    targets: Block
    weights: np.ndarray
    identity: np.ndarray
    free: np.ndarray
    ridge: np.ndarray

    def of(self, classes: np.ndarray) -> "Problem":
        """Select some of the classes."""
        return replace(
            self,
            terms=self.terms[classes],
            targets=self.targets[classes],
            weights=self.weights if self.weights.ndim == 1 else self.weights[classes],
            ridge=self.ridge[classes],
        )

    def loss(self, at: np.ndarray) -> np.ndarray:
        """Mean NLL and penalty of each class, (c,)."""
        return self._loss(at, *self._sigmoid(at))

    def derivatives(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Loss (c,), gradient (c, d) and Hessian (c, d, d); fixed coefficients have none."""
        odds, small = self._sigmoid(at)
        loss = self._loss(at, odds, small)
        inverse = 1 / (1 + small)
        excess = np.where(odds >= 0, 1.0, small) * inverse - self.targets
        excess *= self.weights
        gradient = np.einsum("cn,cdn->cd", excess, self.terms) + self.ridge * (at - self.identity)
        small *= inverse * inverse * self.weights
        size = at.shape[1]
        hessian = np.zeros((len(at), size, size))
        for i in np.flatnonzero(self.free):
            scaled = small * self.terms[:, i]
            for j in np.flatnonzero(self.free[: i + 1]):
                each = np.einsum("cn,cn->c", scaled, self.terms[:, j])
                hessian[:, i, j] = hessian[:, j, i] = each
        at_diagonal = np.arange(size)
        hessian[:, at_diagonal, at_diagonal] += np.where(self.free, self.ridge, 1.0)
        return loss, np.where(self.free, gradient, 0.0), hessian

    def _sigmoid(self, at: np.ndarray) -> tuple[Block, Block]:
        odds = np.einsum("cd,cdn->cn", at, self.terms)
        return odds, np.exp(-np.abs(odds))

    def _loss(self, at: np.ndarray, odds: Block, small: Block) -> np.ndarray:
        each = np.maximum(odds, 0) - self.targets * odds + np.log1p(small)
        penalty = 0.5 * (self.ridge * (at - self.identity) ** 2).sum(1)
        return np.asarray(_sums(each, self.weights) + penalty)


def _sums(values: Block, weights: np.ndarray) -> np.ndarray:
    """Weighted sum over the examples of each class, (c,)."""
    return np.asarray(np.einsum("cn,n->c" if weights.ndim == 1 else "cn,cn->c", values, weights))


def _start(problem: Problem) -> np.ndarray:
    """Start at the identity, or at zero where the loss is lower.

    Newton's method would diverge from a start where all sigmoids are saturated.
    """
    identity = np.tile(np.where(problem.free, problem.identity, 0.0), (len(problem.terms), 1))
    zero = np.zeros_like(identity)
    better = problem.loss(zero) < problem.loss(identity)
    return np.where(better[:, None], zero, identity)


def _direction(gradient: np.ndarray, hessian: np.ndarray) -> np.ndarray:
    """Newton step, computed in coordinates scaled to a unit diagonal of the Hessian."""
    unit = np.sqrt(np.einsum("cdd->cd", hessian))
    unit[unit == 0] = 1
    scaled = hessian / unit[:, :, None] / unit[:, None, :] + JITTER * np.eye(gradient.shape[1])
    return np.asarray(-np.linalg.solve(scaled, (gradient / unit)[:, :, None])[:, :, 0] / unit)
