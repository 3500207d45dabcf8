"""Logistic regression of many classes at once, each against the rest, by Newton's method."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

STEPS = 60
# Half a Newton decrement is how far the loss is from its least value, here in parts of it.
TOLERANCE = 1e-14
# A loss below this share of the rarer outcome means that nothing is left to fit.
PERFECT = 1e-9
# Pull towards the identity, in parts of the rarer outcome, where there is no best fit.
RIDGE = 1e-4
# Keeps Newton's equations solvable where two terms say the same.
JITTER = 1e-13

# Examples of some classes: c classes, d coefficients, n examples.
Block = np.ndarray


class Solved(NamedTuple):
    """Coefficients of some classes, (c, d), and how well each is known, (c,)."""

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
    """Best coefficients of each class; pulled towards the identity where there is no best.

    Weights are (n,), or (c, n) for classes that leave out different examples; a class that leaves
    out all of them keeps the identity.
    """
    total = weights.sum(-1, keepdims=True)
    weights = weights / np.where(total > 0, total, 1.0)
    share = _sums(targets, weights)
    rarer = np.minimum(share, 1 - share)
    best = _constrained(terms, targets, weights, identity, nonnegative, np.zeros(terms.shape[:2]))
    stuck = np.flatnonzero(~best.converged | (best.loss < PERFECT * rarer))
    if len(stuck):
        counts, hard = _of(weights, stuck), terms[stuck]
        scale = np.stack([_sums(hard[:, at] ** 2, counts) for at in range(len(identity))], 1)
        pull = RIDGE * rarer[stuck, None] * np.maximum(scale, 1e-12)
        pulled = _constrained(hard, targets[stuck], counts, identity, nonnegative, pull)
        for all_of, some in zip(best, pulled, strict=True):
            all_of[stuck] = some
        best.converged[stuck] = False
    return best


def _constrained(
    terms: Block,
    targets: Block,
    weights: np.ndarray,
    identity: np.ndarray,
    nonnegative: tuple[int, ...],
    pull: np.ndarray,
) -> Solved:
    """Minimise with some coefficients held at 0 or above: the best of the faces is the optimum."""
    free = np.ones(len(identity), dtype=bool)
    best = _newton(terms, targets, weights, identity, free, pull)
    if not nonnegative:
        return best
    columns = list(nonnegative)
    inside = (best.coefficients[:, columns] >= 0).all(1)
    again = np.flatnonzero(~inside | ~best.converged)
    if not len(again):
        return best
    best.loss[~inside] = np.inf
    for held in [[column] for column in columns] + [columns]:
        free = ~np.isin(np.arange(len(identity)), held)
        counts = _of(weights, again)
        face = _newton(terms[again], targets[again], counts, identity, free, pull[again])
        better = (face.coefficients[:, columns] >= 0).all(1) & (face.loss < best.loss[again])
        for all_of, some in zip(best, face, strict=True):
            all_of[again[better]] = some[better]
    return best


def _newton(
    terms: Block,
    targets: Block,
    weights: np.ndarray,
    identity: np.ndarray,
    free: np.ndarray,
    pull: np.ndarray,
) -> Solved:
    """Newton's method with steps cut short until the loss falls; classes that are done drop out."""
    problem = Problem(terms, targets, weights, identity, free, pull)
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
        loss, gradient, curvature = problem.derivatives(trial)
        falls = loss <= solved.loss[index] + 1e-4 * step * slope
        for all_of, some in zip(solved[:3], (trial, loss, gradient), strict=True):
            all_of[index[falls]] = some[falls]
        direction[falls] = _direction(gradient[falls], curvature[falls])
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
    """Some classes' log scores plus the pull, as functions of their coefficients."""

    terms: Block
    targets: Block
    weights: np.ndarray
    identity: np.ndarray
    free: np.ndarray
    pull: np.ndarray

    def of(self, classes: np.ndarray) -> "Problem":
        """Only some of the classes."""
        return replace(
            self,
            terms=self.terms[classes],
            targets=self.targets[classes],
            weights=_of(self.weights, classes),
            pull=self.pull[classes],
        )

    def loss(self, at: np.ndarray) -> np.ndarray:
        """Mean log score and pull of each class, (c,)."""
        return self._loss(at, *self._sigmoid(at))

    def derivatives(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Loss (c,), gradient (c, d) and curvature (c, d, d); held coefficients have none."""
        odds, small = self._sigmoid(at)
        loss = self._loss(at, odds, small)
        inverse = 1 / (1 + small)
        excess = np.where(odds >= 0, 1.0, small) * inverse - self.targets
        excess *= self.weights
        gradient = np.einsum("cn,cdn->cd", excess, self.terms) + self.pull * (at - self.identity)
        small *= inverse * inverse * self.weights
        size = at.shape[1]
        curvature = np.zeros((len(at), size, size))
        for i in np.flatnonzero(self.free):
            scaled = small * self.terms[:, i]
            for j in np.flatnonzero(self.free[: i + 1]):
                each = np.einsum("cn,cn->c", scaled, self.terms[:, j])
                curvature[:, i, j] = curvature[:, j, i] = each
        at_diagonal = np.arange(size)
        curvature[:, at_diagonal, at_diagonal] += np.where(self.free, self.pull, 1.0)
        return loss, np.where(self.free, gradient, 0.0), curvature

    def _sigmoid(self, at: np.ndarray) -> tuple[Block, Block]:
        odds = np.einsum("cd,cdn->cn", at, self.terms)
        return odds, np.exp(-np.abs(odds))

    def _loss(self, at: np.ndarray, odds: Block, small: Block) -> np.ndarray:
        each = np.maximum(odds, 0) - self.targets * odds + np.log1p(small)
        pulled = 0.5 * (self.pull * (at - self.identity) ** 2).sum(1)
        return np.asarray(_sums(each, self.weights) + pulled)


def _of(weights: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Weights of some of the classes, which may share them."""
    return weights if weights.ndim == 1 else weights[classes]


def _sums(values: Block, weights: np.ndarray) -> np.ndarray:
    """Weighted sum over the examples of each class, (c,)."""
    return np.asarray(np.einsum("cn,n->c" if weights.ndim == 1 else "cn,cn->c", values, weights))


def _start(problem: Problem) -> np.ndarray:
    """Start at the identity, or at even odds where that is better.

    From far outside, where every sigmoid is flat, Newton's method would not find back.
    """
    identity = np.tile(np.where(problem.free, problem.identity, 0.0), (len(problem.terms), 1))
    nothing = np.zeros_like(identity)
    better = problem.loss(nothing) < problem.loss(identity)
    return np.where(better[:, None], nothing, identity)


def _direction(gradient: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    """Newton's step, with every coefficient measured in its own unit."""
    unit = np.sqrt(np.einsum("cdd->cd", curvature))
    unit[unit == 0] = 1
    scaled = curvature / unit[:, :, None] / unit[:, None, :] + JITTER * np.eye(gradient.shape[1])
    return np.asarray(-np.linalg.solve(scaled, (gradient / unit)[:, :, None])[:, :, 0] / unit)
