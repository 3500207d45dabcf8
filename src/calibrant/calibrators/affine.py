r"""Multinomial regression of labels on scores: the solver behind vector and matrix scaling.

Minimises, over a change D of the identity and a bias b,

$$\frac{1}{\sum_i w_i} \sum_i w_i\, \mathrm{CE}\bigl((I + D) x_i + b,\ y_i\bigr)
  + \rho_d \|\mathrm{diag} D\|^2 + \rho_o \|\mathrm{off} D\|^2 + \rho_b \|b\|^2,$$

which is convex. The unknowns are first turned and scaled so that the curvature at the start is
close to the identity (a Kronecker product of two k x k matrices stands in for it); quasi-Newton
steps then need a few dozen passes instead of hundreds, the first of them in float32. Where the
penalty outweighs what the data say, as with a thousand classes, scaling alone does as well.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import OptimizeResult, minimize

from calibrant.calibrators.blas_threads import one_thread_each
from calibrant.example_stats import map_chunks
from calibrant.shapes import Index, PerClass

# Numbers in a chunk: its arrays stay in cache together.
ELEMENTS = 1 << 18
# A search ends where the largest slope, in the scaled unknowns, or the relative gain of a step
# falls below this: first for passes in float32, then for those that count, in float64. Slopes are
# those of 10,000 unknowns; of more they have to be smaller, because they add up.
ROUGH, FINE = (2e-4, 1e-7), (2e-4, 2e-8)
FEW = 10_000
# Up to this many scores steps cost nothing, and the search goes on until rounding ends it.
SMALL, EXACT = 1 << 18, (1e-10, 1e-16)
# Where the slope is at most this, rounding may end a search that asked for more.
ENOUGH = 1e-4
STEPS = 500
# Examples that tell the directions of the curvature well enough.
SOME = 10_000
# Curvature that is added so that directions without any are not blown up.
FLOOR = 1e-6


@dataclass(frozen=True)
class Ridge:
    """Weights of the penalties on the bias, the diagonal and the rest of D."""

    bias: float = 0.0
    diagonal: float = 0.0
    off_diagonal: float = 0.0


class Solution(NamedTuple):
    """The matrix (or its diagonal), the bias, and how the search ended."""

    weight: np.ndarray
    bias: PerClass
    converged: bool
    gradient_norm: float


class Data(NamedTuple):
    """Scores (n, k), labels, and weights that sum to one, none of them zero.

    Masked classes, if any, have scores of 0 and no probability: they add to no sum.
    """

    scores: np.ndarray
    labels: Index
    shares: np.ndarray
    masked: np.ndarray | None = None

    def typed(self, dtype: type) -> "Data":
        """The same numbers in another precision."""
        scores: np.ndarray = self.scores.astype(dtype, copy=False)
        return self._replace(scores=scores, shares=self.shares.astype(dtype))

    def some(self) -> "Data":
        """About `SOME` of the examples, evenly spread."""
        part = slice(None, None, max(1, len(self.scores) // SOME))
        rows = self.of(part)
        return rows._replace(shares=rows.shares / rows.shares.sum())

    def of(self, part: slice) -> "Data":
        """Some of the examples, with the weights they have."""
        masked = None if self.masked is None else self.masked[part]
        return Data(self.scores[part], self.labels[part], self.shares[part], masked)


Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]


@one_thread_each()
def fit_diagonal(data: Data, ridge: Ridge) -> Solution:
    """Solve for one factor and one bias of each class."""
    k = data.scores.shape[1]
    ones = np.ones(k)
    _, _, curvature = _diagonal_pass(data, ones, np.zeros(k), curved=True)
    penalty = np.stack([np.full(k, ridge.diagonal), np.full(k, ridge.bias)])
    scale = 1 / np.sqrt(curvature + 2 * penalty + FLOOR)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        change = flat.reshape(2, k) * scale
        value, slope, _ = _diagonal_pass(data, ones + change[0], change[1])
        value += float((penalty * change**2).sum())
        return value, ((slope + 2 * penalty * change) * scale).ravel()

    found = _search(loss, np.zeros(2 * k), ends=_ends(data))
    change = found.x.reshape(2, k) * scale
    return Solution(ones + change[0], change[1], _converged(found), _norm(found.jac))


@one_thread_each()
def fit_full(data: Data, ridge: Ridge) -> Solution:
    """Solve for a matrix and a bias."""
    k = data.scores.shape[1]
    penalty = np.full((k + 1, k), ridge.off_diagonal)
    penalty[np.arange(k), np.arange(k)] = ridge.diagonal
    penalty[k] = ridge.bias
    some = _doubts(data.some())
    # No entry of the matrix has more curvature than a quarter of its score's mean square.
    plain = 2 * ridge.off_diagonal > some.squares.max()
    unknowns = _scaled(some, penalty) if plain else _turned(some, ridge.off_diagonal)
    identity = np.eye(k + 1, k)

    def loss_of(data: Data) -> Loss:
        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            change = unknowns.change(flat.reshape(k + 1, k))
            value, slope = _full_pass(data, identity + change)
            value += float(np.einsum("ij,ij,ij->", penalty, change, change))
            slope += 2 * penalty * change
            return value, unknowns.slope(slope).ravel()

        return loss

    start = np.zeros((k + 1) * k)
    if data.scores.size > SMALL:
        start = _search(loss_of(data.typed(np.float32)), start, ends=ROUGH).x
    found = _search(loss_of(data.typed(np.float64)), start, ends=_ends(data))
    whole = identity + unknowns.change(found.x.reshape(k + 1, k))
    return Solution(whole[:k].T, whole[k], _converged(found), _norm(found.jac))


def _converged(found: OptimizeResult) -> bool:
    """Whether the search ended for the right reason, or so close that rounding stopped it."""
    return bool(found.success or np.abs(found.jac).max() <= ENOUGH)


def _norm(gradient: np.ndarray) -> float:
    return float(np.linalg.norm(gradient))


def _ends(data: Data) -> tuple[float, float]:
    return EXACT if data.scores.size <= SMALL else FINE


def _search(loss: Loss, start: np.ndarray, *, ends: tuple[float, float]) -> OptimizeResult:
    slope = ends[0] * min(1.0, (FEW / len(start)) ** 0.25)
    options = {"maxiter": STEPS, "maxfun": 2 * STEPS, "gtol": slope, "ftol": ends[1]}
    return minimize(loss, start, jac=True, method="L-BFGS-B", options=options)


def _diagonal_pass(
    data: Data, factor: PerClass, bias: PerClass, *, curved: bool = False
) -> tuple[float, np.ndarray, np.ndarray]:
    """Loss, gradient and, if asked, diagonal of the curvature, each (2, k): factors, biases."""

    def of_chunk(part: slice) -> tuple[float, np.ndarray, np.ndarray]:
        rows = data.of(part)
        scores = rows.scores.astype(np.float64)
        value, error = _errors(scores * factor + bias, rows)
        slope = np.stack([np.einsum("nk,nk->k", error, scores), error.sum(0)])
        if not curved:
            return value, slope, np.zeros_like(slope)
        own = np.zeros_like(error)
        own[np.arange(len(own)), rows.labels] = rows.shares
        weight = error + own
        spread = weight - weight**2 / rows.shares[:, None]
        return value, slope, np.stack([np.einsum("nk,nk->k", spread, scores**2), spread.sum(0)])

    parts = list(map_chunks(of_chunk, torch.from_numpy(data.scores), elements=ELEMENTS))
    values, slopes, curves = zip(*parts, strict=True)
    return float(sum(values)), np.sum(slopes, 0), np.sum(curves, 0)


def _full_pass(data: Data, weight: np.ndarray) -> tuple[float, np.ndarray]:
    """Loss and gradient along the rows of the matrix and, last, the bias, (k + 1, k)."""
    typed = weight.astype(data.scores.dtype)

    def of_chunk(part: slice) -> tuple[float, np.ndarray]:
        rows = data.of(part)
        value, error = _errors(rows.scores @ typed[:-1] + typed[-1], rows)
        return value, np.concatenate([rows.scores.T @ error, error.sum(0)[None]]).astype(np.float64)

    total, slope = 0.0, np.zeros(weight.shape)
    for value, piece in map_chunks(of_chunk, torch.from_numpy(data.scores), elements=ELEMENTS):
        total += value
        slope += piece
    return total, slope


def _errors(logits: np.ndarray, rows: Data) -> tuple[float, np.ndarray]:
    """Weighted sum of the losses, and their derivative along the logits; uses up the logits."""
    at, labels, shares = np.arange(len(logits)), rows.labels, rows.shares
    if rows.masked is not None:
        logits[rows.masked] = -np.inf
    logits -= logits.max(1)[:, None]
    own = logits[at, labels]
    np.exp(logits, out=logits)
    total = np.einsum("nk->n", logits)
    value = float(np.einsum("n,n->", shares.astype(np.float64), np.log(total) - own))
    logits *= (shares / total)[:, None]
    logits[at, labels] -= shares
    return value, logits


class Doubts(NamedTuple):
    """Scores with a column of ones, their probabilities, and the weights of both.

    Examples count by how undecided they are, since the others have no curvature.
    """

    scores: np.ndarray
    probs: np.ndarray
    shares: np.ndarray
    doubt: np.ndarray

    @property
    def squares(self) -> np.ndarray:
        """Mean square of each score."""
        return np.asarray(np.einsum("nk,nk,n->k", self.scores, self.scores, self.doubt))


class Unknowns(NamedTuple):
    """What the search moves: how it becomes a change of the matrix, and slopes become its own."""

    change: Callable[[np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray], np.ndarray]


def _doubts(data: Data) -> Doubts:
    scores = data.scores.astype(np.float64)
    allowed = scores if data.masked is None else np.where(data.masked, -np.inf, scores)
    probs = np.exp(allowed - allowed.max(1)[:, None])
    probs /= probs.sum(1)[:, None]
    doubt = data.shares * (1 - np.einsum("nk,nk->n", probs, probs))
    one = np.concatenate([scores, np.ones((len(scores), 1))], 1)
    # All of them can be sure beyond doubt; then they count alike.
    doubt = doubt / doubt.sum() if doubt.sum() > 0 else data.shares
    return Doubts(one, probs, data.shares, doubt)


def _scaled(some: Doubts, penalty: np.ndarray) -> Unknowns:
    """Each entry divided by the root of its own curvature."""
    spread = some.shares @ (some.probs * (1 - some.probs))
    scale = 1 / np.sqrt(np.outer(some.squares, spread) + 2 * penalty + FLOOR)
    return Unknowns(lambda entries: entries * scale, lambda slope: slope * scale)


def _turned(some: Doubts, penalty: float) -> Unknowns:
    """Entries along the directions of scores and of logits, divided by the root of the curvature.

    Turning keeps sums of squares, so a penalty that is the same everywhere is just added.
    """
    inputs = (some.scores * some.doubt[:, None]).T @ some.scores
    mean = some.shares @ some.probs
    outputs = np.diag(mean) - (some.probs * some.shares[:, None]).T @ some.probs
    in_values, left = np.linalg.eigh(inputs)
    out_values, right = np.linalg.eigh(outputs)
    curvature = np.outer(np.maximum(in_values, 0), np.maximum(out_values, 0))
    scale = 1 / np.sqrt(curvature + 2 * penalty + FLOOR)
    return Unknowns(
        lambda entries: np.asarray(left @ (entries * scale) @ right.T),
        lambda slope: np.asarray((left.T @ slope @ right) * scale),
    )
